"""What the host refuses before anything is launched: shapes, types, strides, devices; with GDNSPEC_DEBUG=1 values."""

import os

import torch

CHUNK = 64
# cu_seqlens holds values on the device, which a call does not wait for. With GDNSPEC_DEBUG=1 it does, and checks them.
DEBUG = os.environ.get("GDNSPEC_DEBUG") == "1"


def check(q, k, v, g, beta, cu_seqlens, initial_state, output, final_state):
    for name, x in (("q", q), ("v", v), ("output", output)):
        if x.ndim != 3:
            raise ValueError(f"{name} has {x.ndim} dimensions, not 3")
    total, HQ, K = q.shape
    H = v.shape[1]
    if HQ == 0 or H == 0 or H % HQ:
        raise ValueError(f"{HQ} query and key heads do not divide {H} value heads")
    if not 1 <= K <= 128:
        raise ValueError(f"head_size {K} is not served: 1 to 128 are")
    if cu_seqlens.ndim != 1 or cu_seqlens.numel() == 0:
        raise ValueError(f"cu_seqlens has shape {tuple(cu_seqlens.shape)}, not [num_seqs + 1]")
    N = cu_seqlens.numel() - 1
    f32, bf16 = (torch.float32,), (torch.bfloat16,)
    require("q", q, q, bf16, (total, HQ, K))
    require("k", k, q, bf16, (total, HQ, K))
    require("v", v, q, bf16, (total, H, K))
    require("g", g, q, f32 + bf16, (total, H, K))
    require("beta", beta, q, f32 + bf16, (total, H))
    require("cu_seqlens", cu_seqlens, q, (torch.int64, torch.int32), (N + 1,))
    require("initial_state", initial_state, q, f32, (N, H, K, K))
    require("output", output, q, bf16, (total, H, K))
    require("final_state", final_state, q, f32, (N, H, K, K))
    if DEBUG:
        bounds = cu_seqlens.tolist()
        if bounds[0] != 0 or bounds[-1] != total or bounds != sorted(bounds):
            raise ValueError(f"cu_seqlens must rise from 0 to total_seq_len {total}; it is {bounds}")


def check_raw(raw, a, b, v):
    _, H, K = v.shape
    if a is None or b is None:
        raise ValueError("raw gates are required: a and b")
    require("a", a, v, (torch.bfloat16,), tuple(v.shape))
    require("b", b, v, (torch.bfloat16,), tuple(v.shape[:2]))
    require("A_log", raw.A_log, v, (torch.float32,), (H,))
    require("dt_bias", raw.dt_bias, v, (torch.float32,), (H, K))


def check_checkpoints(starts, interval, checkpoints, cu_seqlens, final_state):
    for name, x, dimensions in (("checkpoint_cu_starts", starts, 1), ("checkpoints", checkpoints, 4)):
        if x.ndim != dimensions:
            raise ValueError(f"{name} has {x.ndim} dimensions, not {dimensions}")
    if not isinstance(interval, int) or interval <= 0 or interval % CHUNK:  # a tensor would be waited for
        raise ValueError(f"checkpoint_interval is {interval!r}, not a positive multiple of {CHUNK}")
    rows = checkpoints.shape[0]
    require("checkpoint_cu_starts", starts, final_state, (torch.int64, torch.int32), tuple(cu_seqlens.shape))
    require("checkpoints", checkpoints, final_state, (torch.float32,), (rows, *final_state.shape[1:]))
    if DEBUG:
        wanted, bounds = [0], cu_seqlens.tolist()
        for n in range(len(bounds) - 1):
            wanted.append(wanted[n] + (bounds[n + 1] - bounds[n]) // interval)
        if starts.tolist() != wanted or wanted[-1] != rows:
            raise ValueError(
                f"checkpoint_cu_starts must be {wanted} with an interval of {interval}, and checkpoints have "
                f"{wanted[-1]} rows; they are {starts.tolist()}, and {rows} rows"
            )


def check_backward(q, k, v, g, beta, cu_seqlens, initial_state, do, dht, dq, dk, dv, dg, dbeta, dh0):
    for name, x in (("q", q), ("v", v)):
        if x.ndim != 3:
            raise ValueError(f"{name} has {x.ndim} dimensions, not 3")
    if q.dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(f"q is {q.dtype}; bfloat16 and float16 are served")
    total, HQ, D = q.shape
    H = v.shape[1]
    if HQ == 0 or H == 0 or H % HQ:
        raise ValueError(f"{HQ} query and key heads do not divide {H} value heads")
    if not 1 <= D <= 256:
        raise ValueError(f"head_size {D} is not served: 1 to 256 are")
    if cu_seqlens.ndim != 1 or cu_seqlens.numel() < 2:
        raise ValueError(f"cu_seqlens has shape {tuple(cu_seqlens.shape)}, not [num_seqs + 1] for a sequence at least")
    N = cu_seqlens.numel() - 1
    states, rows, f32 = (N, H, D, D), (q.dtype,), (torch.float32,)
    for name, x in (("q", q), ("k", k), ("dq", dq), ("dk", dk)):
        require(name, x, q, rows, (total, HQ, D))
    for name, x in (("v", v), ("do", do), ("dv", dv)):
        require(name, x, q, rows, (total, H, D))
    require("g", g, q, (*f32, torch.bfloat16), (total, H, D))
    require("beta", beta, q, (*f32, torch.bfloat16), (total, H))
    require("cu_seqlens", cu_seqlens, q, (torch.int64, torch.int32), (N + 1,))
    for name, x in (("initial_state", initial_state), ("dht", dht), ("dh0", dh0)):
        require(name, x, q, f32, states)
    require("dg", dg, q, f32, (total, H, D))
    require("dbeta", dbeta, q, f32, (total, H))
    if DEBUG:
        bounds = cu_seqlens.tolist()
        if bounds[0] != 0 or bounds[-1] > total or bounds != sorted(bounds):
            raise ValueError(f"cu_seqlens must rise from 0 and end within total_seq_len {total}; it is {bounds}")


def require(name, x, like, dtypes, shape):
    """x, where it is given: of one of these types, of this shape, contiguous, and where `like` is."""
    if x is None:
        return
    if x.dtype not in dtypes:
        raise ValueError(f"{name} is {x.dtype}, not {' or '.join(map(str, dtypes))}")
    if x.shape != shape:
        raise ValueError(f"{name} has shape {tuple(x.shape)}, not {shape}")
    if not x.is_contiguous():
        raise ValueError(f"{name} must be contiguous; it has shape {tuple(x.shape)}, strides {x.stride()}")
    if x.device != like.device:
        raise ValueError(f"{name} is on {x.device}, not on {like.device}")

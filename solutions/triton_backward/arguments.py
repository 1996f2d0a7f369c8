"""What the host refuses before anything is launched: shapes, types, strides, devices; with GDNSPEC_DEBUG=1 values."""

import os

import torch

CHUNK = 64
# cu_seqlens holds values on the device, which a call does not wait for. With GDNSPEC_DEBUG=1 it does, and checks them.
DEBUG = os.environ.get("GDNSPEC_DEBUG") == "1"


def check(q, k, v, g, beta, cu_seqlens, initial_state, do, dht, dq, dk, dv, dg, dbeta, dh0):
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 3:
            raise ValueError(f"{name} has {x.ndim} dimensions, not 3")
    if q.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise ValueError(f"q is {q.dtype}; bfloat16, float16 and float32 are served")
    total, HQ, D = q.shape
    HK, HV = k.shape[1], v.shape[1]
    H = max(HQ, HV)
    if min(HQ, HK, HV) == 0 or not ((HK == HV and HQ % HK == 0) or (HQ == HK and HV % HQ == 0)):
        raise ValueError(f"{HQ} query, {HK} key and {HV} value heads are neither GQA nor GVA")
    if not 1 <= D <= 256:
        raise ValueError(f"head_size {D} is not served: 1 to 256 are")
    if cu_seqlens.ndim != 1 or cu_seqlens.numel() < 2:
        raise ValueError(f"cu_seqlens has shape {tuple(cu_seqlens.shape)}, not [num_seqs + 1] for a sequence at least")
    N = cu_seqlens.numel() - 1
    states, rows, f32 = (N, H, D, D), (q.dtype,), (torch.float32,)
    require("k", k, q, rows, (total, HK, D))
    require("v", v, q, rows, (total, HV, D))
    require("q", q, q, rows, (total, HQ, D))
    require("g", g, q, f32, (total, H))
    require("beta", beta, q, f32, (total, H))
    require("cu_seqlens", cu_seqlens, q, (torch.int64, torch.int32), (N + 1,))
    require("initial_state", initial_state, q, f32, states)
    require("do", do, q, rows, (total, H, D))
    require("dht", dht, q, f32, states)
    require("dq", dq, q, rows, (total, HQ, D))
    require("dk", dk, q, rows, (total, HK, D))
    require("dv", dv, q, rows, (total, HV, D))
    require("dg", dg, q, f32, (total, H))
    require("dbeta", dbeta, q, f32, (total, H))
    require("dh0", dh0, q, f32, states)
    if DEBUG:
        bounds = cu_seqlens.tolist()
        if bounds[0] != 0 or bounds[-1] > total or bounds != sorted(bounds):
            raise ValueError(f"cu_seqlens must rise from 0 and end within total_seq_len {total}; it is {bounds}")


def check_raw(q, H, a, b, A_log, dt_bias, da, db, dA_log, ddt_bias):
    """What only the entry with raw gates has."""
    raw, f32 = (torch.bfloat16, torch.float16, torch.float32), (torch.float32,)
    for name, x in (("a", a), ("b", b), ("da", da), ("db", db)):
        require(name, x, q, raw, (q.shape[0], H))
    require("dt_bias", dt_bias, q, raw, (H,))
    for name, x in (("A_log", A_log), ("dA_log", dA_log), ("ddt_bias", ddt_bias)):
        require(name, x, q, f32, (H,))


def check_checkpoints(q, dh0, cu_seqlens, checkpoints, first, interval):
    """What only the entry with checkpoints has."""
    require("checkpoints", checkpoints, q, (torch.float32,), (*checkpoints.shape[:1], *dh0.shape[1:]))
    require("checkpoint_cu_starts", first, q, (torch.int64, torch.int32), (dh0.shape[0] + 1,))
    if interval <= 0 or interval % CHUNK:
        raise ValueError(f"checkpoint_interval must be a positive multiple of {CHUNK}; it is {interval}")
    if DEBUG:
        counts, rows = (cu_seqlens.diff() // interval).tolist(), first.tolist()
        if rows[0] != 0 or first.diff().tolist() != counts or rows[-1] != len(checkpoints):
            raise ValueError(
                f"checkpoint_cu_starts must count {counts} checkpoints up to all {len(checkpoints)}; it is {rows}"
            )


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

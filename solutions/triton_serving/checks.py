"""What these kernels take: everything else is refused, with a message that names the argument."""

import torch

LARGEST = 256  # elements of a head


def require(device: torch.device, dtype: torch.dtype, **tensors: tuple[torch.Tensor, tuple[int, ...]]) -> None:
    """Raises `ValueError` unless each tensor has this type and its shape, is contiguous, and is on the device."""
    for name, (x, shape) in tensors.items():
        if x.dtype != dtype:
            raise ValueError(f"{name} is {x.dtype}, not {dtype}")
        if tuple(x.shape) != tuple(shape):
            raise ValueError(f"{name} has shape {tuple(x.shape)}, not {tuple(shape)}")
        if not x.is_contiguous():
            raise ValueError(f"{name} must be contiguous; it has shape {tuple(x.shape)}, strides {x.stride()}")
        if x.device != device:
            raise ValueError(f"{name} is on {x.device}, not on {device}")


def require_pool(name: str, pool: torch.Tensor, dimensions: int) -> None:
    """Raises `ValueError` unless it is a pool of states [.., D, D], contiguous within each slot."""
    if pool.dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"{name} is {pool.dtype}, neither float32 nor bfloat16")
    if pool.ndim != dimensions or pool.shape[-1] != pool.shape[-2]:
        raise ValueError(f"{name} has shape {tuple(pool.shape)}: {dimensions} dimensions [.., head_size, head_size]")
    if pool.shape[-1] > LARGEST:
        raise ValueError(f"head_size {pool.shape[-1]} is not served: up to {LARGEST} is")
    if not pool[:1].is_contiguous() or (len(pool) > 1 and pool.stride(0) < pool[0].numel()):
        raise ValueError(f"{name} must be contiguous but for its first dimension; its strides are {pool.stride()}")


def groups(key_heads: int, H: int) -> int:
    """Key heads, once they divide the heads. Raises `ValueError`."""
    if key_heads <= 0 or H % key_heads:
        raise ValueError(f"num_q_heads {key_heads} does not divide num_v_heads {H}")
    return key_heads


def require_drafts(
    q, k, v, pool, slots, step_states, step_slots, drafts, A_log, a, dt_bias, b, output
):  # fmt: skip
    """(rows, tokens, heads, head size, key heads) of a verify. Raises `ValueError`."""
    require_pool("pool", pool, 4)
    if q.ndim != 4:
        raise ValueError(f"q has {q.ndim} dimensions, not 4")
    (B, T, key_heads, D), H, device = q.shape, pool.shape[1], pool.device
    groups(key_heads, H)
    require_steps(step_states, pool, T)
    if pool.shape[2] != D:
        raise ValueError(f"q has {D} elements a head, and pool {pool.shape[2]}")
    bf16, qk, vo, gate = torch.bfloat16, (B, T, key_heads, D), (B, T, H, D), (B, T, H)
    require(device, bf16, q=(q, qk), k=(k, qk), v=(v, vo), output=(output, vo))
    require(device, bf16, a=(a, gate), b=(b, gate), dt_bias=(dt_bias, (H,)))
    require(device, torch.float32, A_log=(A_log, (H,)))
    require(device, torch.int32, slots=(slots, (B,)), step_slots=(step_slots, (B,)), drafts=(drafts, (B,)))
    return B, T, H, D, key_heads


def require_prefill(q, k, v, g, beta, cu_seqlens, pool, slots, has_initial_state, output):
    """(heads, head size, sequences) of a prefill. Raises `ValueError`."""
    require_pool("pool", pool, 4)
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 3:
            raise ValueError(f"{name} has {x.ndim} dimensions, not 3")
    (H, D), (T, HQ, _), HK, HV, N = pool.shape[1:3], q.shape, k.shape[1], v.shape[1], len(slots)
    if max(HQ, HV) != H or any(heads <= 0 or H % heads for heads in (HQ, HK, HV)):
        raise ValueError(f"{HQ} query, {HK} key and {HV} value heads do not go with {H} states")
    device, bf16 = pool.device, torch.bfloat16
    require(device, bf16, q=(q, (T, HQ, D)), k=(k, (T, HK, D)), v=(v, (T, HV, D)), output=(output, (T, H, D)))
    gates = {name: (x, (T, H)) for name, x in (("g", g), ("beta", beta)) if x is not None}
    require(device, torch.float32, **gates)
    require(device, torch.int64, cu_seqlens=(cu_seqlens, (N + 1,)))
    require(device, torch.int32, slots=(slots, (N,)))
    require(device, torch.bool, has_initial_state=(has_initial_state, (N,)))
    return H, D, N


def require_steps(step_states: torch.Tensor, pool: torch.Tensor, T: int) -> None:
    """Raises `ValueError` unless it is a buffer of T steps for the states of the pool."""
    require_pool("step_states", step_states, 5)
    wanted = (pool.shape[0], T, *pool.shape[1:])
    if not 1 <= T <= 16:
        raise ValueError(f"{T} tokens a row are not served: 1 to 16 are")
    if tuple(step_states.shape) != wanted:
        raise ValueError(f"step_states has shape {tuple(step_states.shape)}, not {wanted}")
    if step_states.dtype != pool.dtype or step_states.device != pool.device:
        raise ValueError(f"step_states is {step_states.dtype} on {step_states.device}, not as pool")


def require_commit(pool, slots, step_states, step_slots, accepted):
    """(rows, tokens, elements of a state of all heads) of a commit. Raises `ValueError`."""
    require_pool("pool", pool, 4)
    if step_states.ndim != 5:
        raise ValueError(f"step_states has {step_states.ndim} dimensions, not 5")
    B, T = len(slots), step_states.shape[1]
    require_steps(step_states, pool, T)
    require(pool.device, torch.int32, slots=(slots, (B,)), step_slots=(step_slots, (B,)), accepted=(accepted, (B,)))
    return B, T, pool[0].numel()


def require_windows(name, x, weight, bias, pool, *shape: int) -> tuple[int, int, int, int]:
    """(rows, tokens, channels, kernel width) of a convolution, whose pool has slots of this shape; -1 in it stands for
    the channels. Raises `ValueError`."""
    if x.ndim != 3 or weight.ndim != 2:
        raise ValueError(f"x has {x.ndim} dimensions, not 3, or weight has {weight.ndim}, not 2")
    (B, T, C), W, device, bf16 = x.shape, weight.shape[1], x.device, torch.bfloat16
    if not 2 <= W <= 4 or not 1 <= T <= 16:
        raise ValueError(f"kernel width {W} with {T} tokens a row is not served: 2 to 4, and 1 to 16, are")
    wanted = (len(pool), *(C if size < 0 else size for size in shape))
    if tuple(pool.shape) != wanted or pool.device != device:
        raise ValueError(f"{name} has shape {tuple(pool.shape)} on {pool.device}, not {wanted}")
    if not pool[:1].is_contiguous() or (len(pool) > 1 and pool.stride(0) < pool[0].numel()):
        raise ValueError(f"{name} must be contiguous but for its first dimension")
    if pool.dtype != bf16:
        raise ValueError(f"{name} is {pool.dtype}, not {bf16}")
    require(device, bf16, x=(x, (B, T, C)), weight=(weight, (C, W)))
    if bias is not None:
        require(device, bf16, bias=(bias, (C,)))
    return B, T, C, W


def require_conv_verify(x, weight, bias, conv_states, slots, accepted, drafts, output):
    """(rows, tokens, channels, kernel width) of a convolution for verify. Raises `ValueError`."""
    width = weight.shape[-1] - 2 + x.shape[1]
    B, T, C, W = require_windows("conv_states", x, weight, bias, conv_states, -1, width)
    require(x.device, x.dtype, output=(output, (B, T, C)))
    require(x.device, torch.int32, slots=(slots, (B,)), accepted=(accepted, (B,)), drafts=(drafts, (B,)))
    return B, T, C, W


def require_conv_tree(x, weight, bias, conv_states, slots, step_windows, step_slots, drafts, parents, output):
    """(rows, tokens, channels, kernel width) of a convolution over a tree. Raises `ValueError`."""
    B, T, C, W = require_windows("conv_states", x, weight, bias, conv_states, -1, weight.shape[-1] - 1)
    require_windows("step_windows", x, weight, bias, step_windows, T, -1, W - 1)
    if len(step_windows) != len(conv_states):
        raise ValueError(f"step_windows has {len(step_windows)} slots, and conv_states {len(conv_states)}")
    require(x.device, x.dtype, output=(output, (B, T, C)))
    require(x.device, torch.int32, slots=(slots, (B,)), step_slots=(step_slots, (B,)), drafts=(drafts, (B,)))
    require(x.device, torch.int32, parents=(parents, (B, T)))
    return B, T, C, W

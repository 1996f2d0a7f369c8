"""What kernels over whole sequences take, but for that on a pool: everything else is refused, as in checks.py."""

import torch
from checks import LARGEST, require


def require_rows(device: torch.device, N: int, cu_seqlens, start_positions, checkpoint_cu_starts) -> None:
    """Raises `ValueError` unless there is a sequence, and its bounds, position and rows are given."""
    if N < 1:
        raise ValueError("cu_seqlens has one entry more than there are sequences, and none is none")
    require(device, torch.int64, cu_seqlens=(cu_seqlens, (N + 1,)), start_positions=(start_positions, (N,)))
    require(device, torch.int64, checkpoint_cu_starts=(checkpoint_cu_starts, (N + 1,)))


def require_edges(
    q, k, v, g, beta, cu_seqlens, initial_state, start_positions, checkpoint_cu_starts, output, final_state, checkpoints
):
    """(heads, head size, sequences) of a prefill. Raises `ValueError`."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 3:
            raise ValueError(f"{name} has {x.ndim} dimensions, not 3")
    (T, HQ, D), HK, HV, N, device = q.shape, k.shape[1], v.shape[1], len(cu_seqlens) - 1, q.device
    H = max(HQ, HV)
    if any(heads <= 0 or H % heads for heads in (HQ, HK, HV)) or D > LARGEST:
        raise ValueError(f"{HQ} query, {HK} key and {HV} value heads of {D} elements are not served")
    require(device, torch.bfloat16, q=(q, (T, HQ, D)), k=(k, (T, HK, D)), v=(v, (T, HV, D)), output=(output, (T, H, D)))
    wide = {name: (x, (T, H)) for name, x in (("g", g), ("beta", beta)) if x is not None}
    wide |= {} if initial_state is None else {"initial_state": (initial_state, (N, H, D, D))}
    wide |= {"final_state": (final_state, (N, H, D, D)), "checkpoints": (checkpoints, (len(checkpoints), H, D, D))}
    require(device, torch.float32, **wide)
    require_rows(device, N, cu_seqlens, start_positions, checkpoint_cu_starts)
    return H, D, N


def require_conv_edges(
    x, weight, bias, cu_seqlens, conv_states, slots, has_initial_state, start_positions, checkpoint_cu_starts, output,
    checkpoints,
):  # fmt: skip
    """(channels, kernel width, sequences) of a convolution. Raises `ValueError`."""
    if x.ndim != 2 or weight.ndim != 2:
        raise ValueError(f"x has {x.ndim} dimensions and weight {weight.ndim}, not 2 and 2")
    (T, C), W, N, device = x.shape, weight.shape[1], len(cu_seqlens) - 1, x.device
    if not 2 <= W <= 4:
        raise ValueError(f"kernel width {W} is not served: 2 to 4 are")
    if tuple(conv_states.shape[1:]) != (C, W - 1) or conv_states.device != device:
        raise ValueError(f"conv_states has shape {tuple(conv_states.shape)} on {conv_states.device}")
    if not conv_states[:1].is_contiguous() or (len(conv_states) > 1 and conv_states.stride(0) < C * (W - 1)):
        raise ValueError("conv_states must be contiguous but for its first dimension")
    bf16 = torch.bfloat16
    if conv_states.dtype != bf16:
        raise ValueError(f"conv_states is {conv_states.dtype}, not {bf16}")
    kept = (checkpoints, (len(checkpoints), C, W - 1))
    require(device, bf16, x=(x, (T, C)), output=(output, (T, C)), weight=(weight, (C, W)), checkpoints=kept)
    if bias is not None:
        require(device, bf16, bias=(bias, (C,)))
    require_rows(device, N, cu_seqlens, start_positions, checkpoint_cu_starts)
    require(device, torch.int32, slots=(slots, (N,)))
    require(device, torch.bool, has_initial_state=(has_initial_state, (N,)))
    return C, W, N


def require_padded(q, k, v, g, beta, attention_mask, initial_state, output, final_state):
    """(rows, positions, heads, head size) of a prefill over a padded batch. Raises `ValueError`."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 4:
            raise ValueError(f"{name} has {x.ndim} dimensions, not 4")
    (B, T, HQ, D), HK, HV, device = q.shape, k.shape[2], v.shape[2], q.device
    H = max(HQ, HV)
    if any(heads <= 0 or H % heads for heads in (HQ, HK, HV)) or D > LARGEST or B < 1:
        raise ValueError(f"{B} rows of {HQ} query, {HK} key and {HV} value heads of {D} elements are not served")
    of = {"q": (q, HQ), "k": (k, HK), "v": (v, HV), "output": (output, H)}
    require(device, torch.bfloat16, **{name: (x, (B, T, heads, D)) for name, (x, heads) in of.items()})
    wide = {name: (x, (B, T, H)) for name, x in (("g", g), ("beta", beta)) if x is not None}
    wide |= {} if initial_state is None else {"initial_state": (initial_state, (B, H, D, D))}
    require(device, torch.float32, **wide, final_state=(final_state, (B, H, D, D)))
    require(device, torch.int64, attention_mask=(attention_mask, (B, T)))
    return B, T, H, D

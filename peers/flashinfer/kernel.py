"""FlashInfer's gated delta rule kernels (CuTe DSL), through its public functions.

Its decode kernels read a state at one slot of a pool and write at another. A definition that wants a new state beside
the old one is served by that: both lie in one allocation, which is described as a pool whose slots are `step` elements
apart, and index tensors name the old and the new states. Where they lie apart, the state is copied and updated in
place.
"""

import math

import torch
from flashinfer.gdn_decode import (
    gated_delta_rule_decode,
    gated_delta_rule_decode_pretranspose,
    gated_delta_rule_mtp,
)
from flashinfer.gdn_prefill import chunk_gated_delta_rule

_tables = {}


def _norm(use_qk_l2norm):
    return use_qk_l2norm is None or bool(use_qk_l2norm)


def _scale(scale):
    return None if scale is None else float(scale)


def _rows(count, device, step=1, shift=0):
    """int32 [count]: row * step + shift; kept, for a user makes it once."""
    key = (count, device, step, shift)
    table = _tables.get(key)
    if table is None:
        table = torch.arange(count, dtype=torch.int32, device=device) * step + shift
        if not torch.cuda.is_available() or not torch.cuda.is_current_stream_capturing():
            _tables[key] = table
    return table


def split_pool(state, new_state):
    """(pool, read, write): both tensors as one pool [slots, H, D, D] of overlapping slots, or None."""
    if state.untyped_storage().data_ptr() != new_state.untyped_storage().data_ptr():
        return None
    if not (state.is_contiguous() and new_state.is_contiguous()):
        return None
    count, slot = state.shape[0], math.prod(state.shape[1:])
    apart = new_state.storage_offset() - state.storage_offset()
    step = math.gcd(slot, abs(apart))
    if apart == 0 or step * state.element_size() % 32:
        return None
    slots = (abs(apart) + (count - 1) * slot) // step + 1
    if slots >= 2**31:
        return None
    base = min(state.storage_offset(), new_state.storage_offset())
    _, H, V, K = state.shape
    pool = state.as_strided((slots, H, V, K), (step, V * K, K, 1), base)
    far, near = _rows(count, state.device, slot // step, abs(apart) // step), _rows(count, state.device, slot // step)
    return (pool, near, far) if apart > 0 else (pool, far, near)


def _pretranspose(q, k, v, pool, read, write, A_log, a, dt_bias, b, scale, use_qk_l2norm, output):
    return gated_delta_rule_decode_pretranspose(
        q, k, v, None, A_log, a, dt_bias, b, scale=_scale(scale), output=output, use_qk_l2norm=_norm(use_qk_l2norm),
        initial_state=pool, initial_state_indices=read, output_state_indices=write, backend="flashinfer",
    )[0]  # fmt: skip


# --- one token, states apart ------------------------------------------------------------------------------------


def decode_k_last(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm, output, new_state):
    """gdn_decode_k_last, gdn_decode_k_last_bf16_state."""
    split = split_pool(state, new_state)
    if split is None:
        new_state.copy_(state)
        split = (new_state, _rows(state.shape[0], state.device), None)
    _pretranspose(q, k, v, *split, A_log, a, dt_bias, b, scale, use_qk_l2norm, output)


def decode_k_first(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm, output, new_state):
    """gdn_decode_k_first: this kernel knows no slots, so the state is copied first."""
    new_state.copy_(state)
    gated_delta_rule_decode(
        q, k, v, new_state, A_log, a, dt_bias, b, scale=_scale(scale), output=output,
        use_qk_l2norm=_norm(use_qk_l2norm), backend="flashinfer",
    )  # fmt: skip


def decode_packed_k_last(mixed_qkv, state, A_log, a, dt_bias, b, scale, use_qk_l2norm, output, new_state):
    """gdn_decode_packed_k_last: q, k and v are views of the packed rows; the kernel takes their strides."""
    D = state.shape[-1]
    values = output.shape[1] * D
    keys = (mixed_qkv.shape[1] - values) // 2
    q, k, v = (x.unflatten(1, (-1, D)).unsqueeze(1) for x in mixed_qkv.split((keys, keys, values), dim=1))
    decode_k_last(
        q, k, v, state, A_log, a.unsqueeze(1), dt_bias, b.unsqueeze(1), scale, use_qk_l2norm,
        output.unsqueeze(1), new_state,
    )  # fmt: skip


# --- one token, a pool ------------------------------------------------------------------------------------------


def prepare_pool(pool, read_slots, write_slots, **_):
    """What the slots say: whether a row is written where it was read, and which rows are no padding."""
    bad = (read_slots < 0) | (write_slots < 0)
    # float32: a row that reads slot -1 is skipped by the kernel itself. bfloat16: -1 would mean slot 0.
    native = read_slots < 0 if pool.dtype == torch.float32 else torch.zeros_like(bad)
    # Rows, their slots with them, change places between calls: only what that leaves as it is may be kept.
    return {"same": torch.equal(read_slots, write_slots), "all_live": bool((bad == native).all())}


def decode_pool_k_last(
    q, k, v, pool, read_slots, write_slots, A_log, a, dt_bias, b, scale, use_qk_l2norm, output, prepared
):
    """gdn_decode_pool_k_last, gdn_decode_pool_k_last_bf16_state: in place."""
    live = None if prepared["all_live"] else torch.nonzero(read_slots >= 0).flatten()
    read, write = (read_slots, write_slots) if live is None else (read_slots[live], write_slots[live])
    write = None if prepared["same"] else write
    gates = scale, use_qk_l2norm
    if live is None:
        _pretranspose(q, k, v, pool, read, write, A_log, a, dt_bias, b, *gates, output)
        return
    output.zero_()
    if live.numel():
        q, k, v, a, b = (x[live] for x in (q, k, v, a, b))
        output[live] = _pretranspose(q, k, v, pool, read, write, A_log, a, dt_bias, b, *gates, None)


# --- several tokens, a slot for each ----------------------------------------------------------------------------


def prepare_verify(pool, initial_slots, state_slots, accepted, **_):
    """Whether rows are padding, and whether FlashInfer's kernel for several tokens can take the pool."""
    pads = initial_slots < 0
    if bool((state_slots[~pads] < 0).any()):  # the kernel would write before the pool
        raise NotImplementedError("FlashInfer's verify kernel takes no state slot -1 in a row that it computes")
    # Its write to slots of a pool takes a contiguous one: [slots * H, V, K].
    by_token = state_slots.shape[1] == 1 or not pool.is_contiguous()
    return {"padded": bool(pads.any()), "by_token": by_token}


def verify_k_last(
    q, k, v, pool, initial_slots, state_slots, accepted, A_log, a, dt_bias, b, scale, use_qk_l2norm, output, prepared
):
    """gdn_verify_k_last: one kernel for all tokens; token by token where the pool is not contiguous."""
    # Slots change between calls, so the start is found here: three small launches that are not FlashInfer's.
    last = state_slots.gather(1, (accepted.long() - 1).clamp(min=0)[:, None])[:, 0]
    start = torch.where(accepted > 0, last, initial_slots)
    if prepared["by_token"]:
        read = start
        for t, write in enumerate(x.contiguous() for x in state_slots.unbind(1)):
            at = slice(t, t + 1)
            _pretranspose(q[:, at], k[:, at], v[:, at], pool, read, write, A_log, a[:, at], dt_bias, b[:, at], scale,
                          use_qk_l2norm, output[:, at])  # fmt: skip
            read = write
        return
    if prepared["padded"]:
        output.zero_()  # a skipped row is left as it was
    gated_delta_rule_mtp(
        q, k, v, pool, start, A_log, a, dt_bias, b, scale=_scale(scale), output=output,
        ssm_state_indices=state_slots, disable_state_update=False, use_qk_l2norm=_norm(use_qk_l2norm),
    )  # fmt: skip


# --- prefill ----------------------------------------------------------------------------------------------------


def prepare_prefill(cu_seqlens, **_):
    """A bound of the lengths, which its path for few heads sizes its grids by."""
    return {"max_seqlen": int((cu_seqlens[1:] - cu_seqlens[:-1]).max())}


def prefill_k_last(q, k, v, g, beta, cu_seqlens, initial_state, scale, output, final_state, prepared):
    """gdn_prefill_k_last."""
    chunk_gated_delta_rule(
        q, k, v, g, beta, scale=_scale(scale), initial_state=initial_state, output_final_state=True,
        cu_seqlens=cu_seqlens, output=output, output_state=final_state, max_seqlen=prepared["max_seqlen"],
    )  # fmt: skip


def prefill_checkpoints(
    q, k, v, g, beta, cu_seqlens, initial_state, scale, checkpoint_cu_starts, checkpoint_interval,
    output, final_state, checkpoints, prepared,
):  # fmt: skip
    """gdn_prefill_checkpoints."""
    chunk_gated_delta_rule(
        q, k, v, g, beta, scale=_scale(scale), initial_state=initial_state, output_final_state=True,
        cu_seqlens=cu_seqlens, output=output, output_state=final_state, state_checkpoints=checkpoints,
        checkpoint_cu_starts=checkpoint_cu_starts, checkpoint_every_n_tokens=int(checkpoint_interval),
        max_seqlen=prepared["max_seqlen"],
    )  # fmt: skip

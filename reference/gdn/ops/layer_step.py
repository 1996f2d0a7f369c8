"""All of the layer between its projections, one token per sequence, on states in two pools."""

from typing import Any

import torch
from gdnspec.family import checks, register_pool
from torch import Tensor

from ..gated_delta_net import arithmetic_type, split_channels
from ..layer import gated_rms_norm
from . import sizes
from .convolution import convolved
from .decode import one_token

NAME = "gated_delta_net_step_"


def moved(
    qkv: Tensor,
    z: Tensor,
    a: Tensor,
    b: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor | None,
    A_log: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    conv_states: Tensor,
    conv_slots: Tensor,
    recurrent_states: Tensor,
    state_slots: Tensor,
) -> tuple[Tensor, ...]:
    """The output, and for both pools the slots that are written and their states."""
    weights = (conv_weight, conv_bias, A_log, dt_bias, norm_weight)
    output = fake(qkv, z, a, b, *weights, conv_states, conv_slots, recurrent_states, state_slots)
    checks.slots(NAME, "conv_slots", conv_slots, len(conv_states), once=True)
    checks.slots(NAME, "state_slots", state_slots, len(recurrent_states), once=True)
    checks.skipped(NAME, "conv_slots", conv_slots, "state_slots", state_slots)
    rows = (conv_slots >= 0).nonzero()[:, 0]
    conv_slots, state_slots = conv_slots[rows].long(), state_slots[rows].long()
    dtype = arithmetic_type(qkv, z, a, b, *weights, conv_states, recurrent_states)
    H, V, K = recurrent_states.shape[1:]
    each = torch.arange(len(rows) + 1, device=qkv.device)
    mixed, conv_written, conv_after = convolved(
        qkv[rows].to(dtype), conv_weight, conv_bias, each, conv_states, conv_slots, torch.ones_like(rows).bool()
    )  # fmt: skip
    q, k, v = split_channels(mixed, H, K, V)
    gates = (A_log, a[rows], dt_bias, b[rows])
    o, S = one_token(q, k, v, recurrent_states[state_slots].to(dtype), *gates, None, True, False)
    y = gated_rms_norm(o, z[rows].to(dtype).unflatten(1, (H, V)), norm_weight, None).flatten(1)
    output = torch.zeros_like(output).index_put((rows,), y.to(z.dtype))
    return output, conv_written, conv_after, state_slots, S.to(recurrent_states.dtype)


def fake(
    qkv: Tensor,
    z: Tensor,
    a: Tensor,
    b: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor | None,
    A_log: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    conv_states: Tensor,
    conv_slots: Tensor,
    recurrent_states: Tensor,
    state_slots: Tensor,
) -> Tensor:
    """The output without values, for a call that is served. Raises `ValueError` and `TypeError` for others."""
    floats = {
        "qkv": qkv, "z": z, "a": a, "b": b, "conv_weight": conv_weight, "conv_bias": conv_bias, "A_log": A_log,
        "dt_bias": dt_bias, "norm_weight": norm_weight, "conv_states": conv_states,
        "recurrent_states": recurrent_states,
    }  # fmt: skip
    slots = {"conv_slots": conv_slots, "state_slots": state_slots}
    checks.tensors(NAME, floats, dict(slots))
    sizes.convolution(NAME, "qkv", qkv, conv_weight, conv_bias, conv_states)
    B = qkv.shape[0]
    sizes.gates(NAME, "B", B, a, b, A_log, dt_bias)
    checks.shape(NAME, "norm_weight", norm_weight, (None,), "[V]")
    H, V = a.shape[1], norm_weight.shape[0]
    checks.shape(NAME, "recurrent_states", recurrent_states, (conv_states.shape[0], H, V, None), "[slots, heads, V, K]")
    sizes.channels(NAME, "qkv", qkv.shape[1], H, recurrent_states.shape[3], V)
    checks.shape(NAME, "z", z, (B, H * V), "[B, heads V]")
    for name, x in slots.items():
        checks.shape(NAME, name, x, (B,), "[B]")
    return torch.empty_like(z, memory_format=torch.contiguous_format)


def asked(
    qkv: Tensor,
    z: Tensor,
    a: Tensor,
    b: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor | None,
    A_log: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    conv_states: Tensor,
    conv_slots: Tensor,
    recurrent_states: Tensor,
    state_slots: Tensor,
) -> tuple[str, tuple[Any, ...], None]:
    weights = (conv_weight, conv_bias, A_log.float(), dt_bias, norm_weight)
    states = (conv_states, conv_slots.int(), recurrent_states, state_slots.int())
    return "gdn_core_decode", (qkv, z, a, b, *weights, *states), None


OPERATOR = register_pool(
    NAME,
    "Tensor qkv, Tensor z, Tensor a, Tensor b, Tensor conv_weight, Tensor? conv_bias, Tensor A_log, Tensor dt_bias, "
    "Tensor norm_weight, Tensor(a!) conv_states, Tensor conv_slots, Tensor(b!) recurrent_states, Tensor state_slots",
    moved,
    fake,
    asked,
)

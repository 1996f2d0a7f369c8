"""The causal convolution before the rule: over whole sequences, and one token per sequence."""

from typing import Any

import torch
from gdnspec.family import Asked, Backward, Grads, checks, register_pool
from torch import Tensor

from ..convolution import silu
from ..gated_delta_net import arithmetic_type
from . import sizes
from .pooled import Pooled, of_each

PREFILL, STEP = "causal_conv1d", "causal_conv1d_step"


def moved(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    cu_seqlens: Tensor,
    conv_states: Tensor,
    slots: Tensor | None,
    has_initial_state: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The output, and the states that go to the slots of sequences that are neither skipped nor empty."""
    fake(x, weight, bias, cu_seqlens, conv_states, slots, has_initial_state)
    (own,) = checks.of_sequences(PREFILL, "cu_seqlens", cu_seqlens, x)
    slots = of_each(slots, cu_seqlens)
    checks.slots(PREFILL, "slots", slots, len(conv_states), once=True)
    output, written, after = convolved(
        own, weight, bias, cu_seqlens.long(), conv_states, slots.long(), has_initial_state
    )  # fmt: skip
    return checks.padded(output, len(x)), written, after


def convolved(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    cu_seqlens: Tensor,
    conv_states: Tensor,
    slots: Tensor,
    has_initial_state: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `moved`. All states and all tokens are rows of one matrix: what a token meets is a row behind it, or, before
    the start of its sequence, a row of the state."""
    dtype, kept = arithmetic_type(x, weight, bias, conv_states), weight.shape[1] - 1
    starts, lengths = cu_seqlens[:-1], cu_seqlens.diff()
    live = slots >= 0
    state = conv_states[slots.clamp(min=0)].mT  # [N, W - 1, C]
    state = torch.where((live & has_initial_state)[:, None, None], state, 0.0)
    each = torch.arange(len(slots), device=x.device)
    sequence = each.repeat_interleave(lengths)
    owned = live[sequence, None]
    x = torch.where(owned, x, 0.0)  # what a skipped row holds: a gradient of zero times NaN would be NaN
    rows = torch.cat([state.flatten(0, 1).to(dtype), x.to(dtype)])

    def row(sequence: Tensor, place: Tensor) -> Tensor:
        """The row of a place in a sequence; places before its start are in its state."""
        before = sequence * kept + kept + place
        return rows[torch.where(place >= 0, len(slots) * kept + starts[sequence] + place, before)]

    place = torch.arange(x.shape[0], device=x.device) - starts[sequence]
    y = torch.zeros_like(rows[len(slots) * kept :]) if bias is None else bias.to(dtype).expand(x.shape)
    for j in range(kept + 1):
        y = y + weight[:, j].to(dtype) * row(sequence, place - (kept - j))
    output = torch.where(owned, silu(y), 0.0).to(x.dtype)
    written = (live & (lengths > 0)).nonzero()[:, 0]
    last = lengths[written, None] - kept + torch.arange(kept, device=x.device)  # [n, W - 1]
    after = row(written[:, None].expand_as(last), last).mT
    return output, slots[written], after.to(conv_states.dtype)


def fake(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    cu_seqlens: Tensor,
    conv_states: Tensor,
    slots: Tensor | None,
    has_initial_state: Tensor,
) -> Tensor:
    """The output without values, for a call that is served. Raises `ValueError` and `TypeError` for others."""
    _check(PREFILL, x, weight, bias, conv_states, cu_seqlens=cu_seqlens, slots=slots)
    sizes.sequences(PREFILL, x, cu_seqlens, conv_states, slots, has_initial_state)
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def step_moved(
    x: Tensor, weight: Tensor, bias: Tensor | None, conv_states: Tensor, slots: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The same of sequences of one token that all go on from their states."""
    step_fake(x, weight, bias, conv_states, slots)
    checks.slots(STEP, "slots", slots, len(conv_states), once=True)
    each = torch.arange(len(x) + 1, device=x.device)
    return convolved(x, weight, bias, each, conv_states, slots.long(), torch.ones_like(slots, dtype=torch.bool))


def step_fake(x: Tensor, weight: Tensor, bias: Tensor | None, conv_states: Tensor, slots: Tensor) -> Tensor:
    """The output without values, for a call that is served. Raises `ValueError` and `TypeError` for others."""
    _check(STEP, x, weight, bias, conv_states, slots=slots)
    checks.shape(STEP, "slots", slots, (x.shape[0],), "[B]")
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _check(
    name: str, x: Tensor, weight: Tensor, bias: Tensor | None, conv_states: Tensor, **integers: Tensor | None
) -> None:  # fmt: skip
    checks.tensors(name, {"x": x, "weight": weight, "bias": bias, "conv_states": conv_states}, dict(integers))
    sizes.convolution(name, "x", x, weight, bias, conv_states, prefix="")


def asked(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    cu_seqlens: Tensor,
    conv_states: Tensor,
    slots: Tensor | None,
    has_initial_state: Tensor,
) -> tuple[str, tuple[Any, ...], None]:
    inputs = (x, weight, bias, cu_seqlens.long(), conv_states, of_each(slots, cu_seqlens).int(), has_initial_state)
    return "gdn_conv1d_prefill", inputs, None


def step_asked(
    x: Tensor, weight: Tensor, bias: Tensor | None, conv_states: Tensor, slots: Tensor
) -> tuple[str, tuple[Any, ...], None]:
    return "gdn_conv1d_decode", (x, weight, bias, conv_states, slots.int()), None


# --- gradients --------------------------------------------------------------------------------------------------


def serves(x: Tensor, weight: Tensor, bias: Any, cu_seqlens: Tensor, conv_states: Tensor, *more: Any) -> bool:
    floats = (x, weight, conv_states) if bias is None else (x, weight, conv_states, bias)
    return len(cu_seqlens) > 1 and 2 <= weight.shape[1] <= 4 and {t.dtype for t in floats} == {torch.bfloat16}


def backward_asked(grads: Grads, args: tuple[Any, ...]) -> Asked:
    """The definition has the states of each sequence in a tensor of their own. Here they are taken from the pool, and
    their gradients go back there."""
    x, weight, bias, cu_seqlens, pool, slots, has_initial_state = args
    on = Pooled(cu_seqlens.long(), pool, slots, has_initial_state, grads[1])
    x, do = on.owned(x, grads[0])

    def finish(outputs: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
        dx, dweight, dbias, dh0 = outputs
        return dx, dweight, dbias, None, on.before(dh0)

    return "gdn_conv1d_backward", (x, weight, bias, on.cu_seqlens, on.initial_state, do, on.dht), finish


OPERATOR = register_pool(
    PREFILL,
    "Tensor x, Tensor weight, Tensor? bias, Tensor cu_seqlens, Tensor(a!) conv_states, Tensor? slots, "
    "Tensor has_initial_state",
    moved,
    fake,
    asked,
    backward=Backward(serves, backward_asked),
)
STEP_OPERATOR = register_pool(
    STEP,
    "Tensor x, Tensor weight, Tensor? bias, Tensor(a!) conv_states, Tensor slots",
    step_moved,
    step_fake,
    step_asked,
)

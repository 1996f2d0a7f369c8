"""The tensors of a recorded call, turned into a definition's inputs.

q, k and v are rounded to bfloat16, q and k after their norm where a definition has none inside. Finished gates become
raw ones with A_log = 0 and dt_bias = 0 where a definition computes them itself, raw ones finished ones where it does
not.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from gdnspec.family import Definition, NotRecorded
from torch import Tensor

from .kimi_delta_attention import l2_normalise, log_gate

if TYPE_CHECKING:
    from .calls import Seen

NEVER, ALWAYS = -100.0, 2.0**27  # raw forget gates at which alpha is 1, and 0, in float32
LOGIT = 128.0  # raw write strength at which beta is 1 in float32, and negated 0


def inputs(definition: Definition, call: Mapping[str, Any], shape: "Seen", repeats: int) -> dict[str, Tensor]:
    """By name, contiguous, on the CPU. They share no memory with the call's. Raises `NotRecorded` for values that the
    definition's gates cannot have."""
    wanted = {tensor.name: tensor for tensor in definition.inputs}
    packed = definition.conventions.packing == "ragged"

    def rows(name: str) -> Tensor:
        """[B, T, ..] as the definition has it: all tokens one after the other, or one of each sequence."""
        flat: Tensor = call[name].detach().cpu().float().flatten(0, 1)
        return flat if packed else flat.unsqueeze(1)

    q, k, v, g, beta = (rows(name) for name in ("q", "k", "v", "g", "beta"))
    q, k = q[..., ::repeats, :], k[..., ::repeats, :]
    if shape.normalised and definition.conventions.qk_norm == "none":
        q, k = l2_normalise(q), l2_normalise(k)
    found = {"q": q.bfloat16(), "k": k.bfloat16(), "v": v.bfloat16()}
    if definition.conventions.decay_gate == "raw":
        found |= _raw_gates(call, shape, g, beta)
    else:
        found |= {"g": _log_gates(call, shape, g), "beta": beta.sigmoid() if shape.raw_beta else beta}
    if shape.carried:
        name = "initial_state" if packed else "state"
        state = call["initial_state"].detach().cpu().float()
        k_last = definition.conventions.state_layout == "k_last"
        state = state if k_last == shape.turned else state.transpose(-1, -2)
        found[name] = state.to(getattr(torch, wanted[name].dtype))
    if packed:
        found["cu_seqlens"] = torch.tensor([0, *shape.lengths]).cumsum(0)
    return {name: found[name].clone(memory_format=torch.contiguous_format) for name in wanted if name in found}


def _raw_gates(call: Mapping[str, Any], shape: "Seen", g: Tensor, beta: Tensor) -> dict[str, Tensor]:
    """A_log [H], a [.., H, K], dt_bias [H, K], b [.., H]."""
    if shape.raw_gates:
        A_log, dt_bias = _parameters(call, shape)
        a = g.bfloat16()
    else:
        A_log, dt_bias = torch.zeros(shape.value_heads), torch.zeros(shape.value_heads, shape.size)
        a = _raw_forget(_log_gates(call, shape, g)).to(torch.bfloat16)
    if not shape.raw_beta:
        if ((beta < 0) | (beta > 1)).any():
            raise NotRecorded("beta outside [0, 1], which no raw gate gives")
        beta = torch.logit(beta.double()).clamp(-LOGIT, LOGIT)
    return {"A_log": A_log, "a": a, "dt_bias": dt_bias, "b": beta.to(torch.bfloat16)}


def _log_gates(call: Mapping[str, Any], shape: "Seen", g: Tensor) -> Tensor:
    """g [.., H, K], at most 0."""
    if shape.raw_gates:
        A_log, dt_bias = _parameters(call, shape)
        return log_gate(A_log.double(), g.double(), dt_bias.double(), shape.bound).float()
    if (g > 0).any():
        raise NotRecorded("g above 0: it is no gate in log space")
    return g


def _parameters(call: Mapping[str, Any], shape: "Seen") -> tuple[Tensor, Tensor]:
    """A_log [H], of which some libraries keep all axes, and dt_bias [H, K], of which some keep one. Absent: zeros."""
    heads, size = shape.value_heads, shape.size
    found = []
    for name, sizes in (("A_log", (heads,)), ("dt_bias", (heads, size))):
        x = call.get(name)
        found.append(torch.zeros(sizes) if x is None else x.detach().cpu().float().reshape(sizes))
    return found[0], found[1]


def _raw_forget(g: Tensor) -> Tensor:
    """a with softplus(a) = -g, in float64 so that small decays stay."""
    rate = -g.double()
    a = torch.where(rate > 30, rate, torch.log(torch.expm1(rate.clamp(max=30))))
    return torch.where(rate <= 0, NEVER, torch.where(torch.isinf(rate), ALWAYS, a.clamp(NEVER, ALWAYS)))

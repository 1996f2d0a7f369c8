"""The tensors of a recorded call, turned into a definition's inputs.

Gates of a rule that has them in log space already become raw ones with A_log = 0 and dt_bias = 0, where a definition
computes them itself; q, k and v are rounded to bfloat16, q and k after their norm where a definition has none inside.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from gdnspec.family import Definition, NotRecorded
from torch import Tensor

if TYPE_CHECKING:
    from .calls import Seen

NEVER, ALWAYS = -100.0, 2.0**27  # raw forget gates at which alpha is 1, and 0, in float32
LOGIT = 128.0  # raw write strength at which beta is 1 in float32, and negated 0


def inputs(definition: Definition, call: Mapping[str, Any], shape: "Seen", repeats: int) -> dict[str, Tensor]:
    """By name, contiguous, on the CPU. They share no memory with the call's. Raises `NotRecorded` for values that the
    definition's gates cannot have."""
    wanted = {tensor.name: tensor for tensor in definition.inputs}
    packed = definition.conventions.packing == "ragged"
    normalises = shape.normalised and definition.conventions.qk_norm == "none"

    def rows(x: Tensor) -> Tensor:
        """[B, T, ..] as the definition has it: all tokens one after the other, or one of each sequence."""
        flat = x.flatten(0, 1)
        return flat if packed else flat.unsqueeze(1)

    found: dict[str, Tensor] = {}
    for name in ("q", "k", "v"):
        x = call[name].detach().cpu().float()
        x = x if name == "v" else x[:, :, ::repeats]
        if normalises and name != "v":
            x = x * torch.rsqrt((x * x).sum(dim=-1, keepdim=True) + 1e-6)
        found[name] = rows(x).to(torch.bfloat16)
    g, beta = (rows(call[name].detach().cpu().float()) for name in ("g", "beta"))
    if (g > 0).any():
        raise NotRecorded("g above 0: it is no gate in log space")
    if definition.conventions.decay_gate == "raw":
        most = 2 if "allow_neg_eigval" in wanted else 1
        if ((beta < 0) | (beta > most)).any():
            raise NotRecorded(f"beta outside [0, {most}], which no raw gate gives")
        heads = g.shape[-1]
        found["A_log"], found["dt_bias"] = torch.zeros(heads), torch.zeros(heads, dtype=torch.bfloat16)
        found["a"], found["b"] = _raw_forget(g).to(torch.bfloat16), _raw_update(beta / most).to(torch.bfloat16)
    else:
        found["g"] = g if definition.conventions.decay_gate == "log" else g.exp()
        found["beta"] = beta
    if shape.carried:
        name = "initial_state" if packed else "state"
        state = call["initial_state"].detach().cpu().float()
        k_last = definition.conventions.state_layout == "k_last"
        dtype = getattr(torch, wanted[name].dtype)
        found[name] = (state.transpose(-1, -2) if k_last else state).to(dtype)
    if packed:
        found["cu_seqlens"] = torch.tensor([0, *shape.lengths]).cumsum(0)
    return {name: found[name].clone(memory_format=torch.contiguous_format) for name in wanted if name in found}


def regrouped(kept: dict[str, Tensor], before: int, after: int) -> dict[str, Tensor]:
    """With every `after`th of the query and key heads that came, no longer every `before`th."""
    heads = {
        name: kept[name].repeat_interleave(before, dim=-2)[..., ::after, :].clone(memory_format=torch.contiguous_format)
        for name in ("q", "k")
    }
    return kept | heads


def _raw_forget(g: Tensor) -> Tensor:
    """a with softplus(a) = -g, in float64 so that small decays stay."""
    rate = -g.double()
    a = torch.where(rate > 30, rate, torch.log(torch.expm1(rate.clamp(max=30))))
    return torch.where(rate <= 0, NEVER, torch.where(torch.isinf(rate), ALWAYS, a.clamp(NEVER, ALWAYS)))


def _raw_update(beta: Tensor) -> Tensor:
    return torch.logit(beta.double()).clamp(-LOGIT, LOGIT)

"""Small calls of every operator of kda."""

from typing import Any

import torch
from helpers_operators import Call
from torch import Tensor

LOWER = -3.0


def calls(
    dtype: torch.dtype = torch.float32, gates: torch.dtype | None = None, size: int = 4, V: int | None = None
) -> dict[str, Call]:
    """One call of each operator, two of the rule. `gates`: the type of finished gates, of rates, biases and states."""
    gates, V = gates or dtype, V or size
    random = torch.Generator().manual_seed(1)

    def normal(*shape: int, of: torch.dtype = dtype) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64).to(of)

    def heads(*lead: int) -> tuple[Tensor, Tensor, Tensor]:
        q, k = (torch.nn.functional.normalize(normal(*lead, 2, size, of=torch.float64), dim=-1).to(dtype) for _ in "qk")
        return q, k, normal(*lead, 4, V)

    def finished(*lead: int) -> tuple[Tensor, Tensor]:
        return -normal(*lead, 4, size, of=gates).abs(), normal(*lead, 4, of=gates).sigmoid()

    def raw(*lead: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return normal(4, of=gates), normal(*lead, 4, size), normal(4, size, of=gates), normal(*lead, 4)

    def states(*lead: int) -> Tensor:
        return normal(*lead, 4, V, size, of=gates)

    def integers(*values: Any) -> Tensor:
        return torch.tensor(values, dtype=torch.int32)

    starts, name = torch.tensor([0, 3, 3, 20]), "kimi_delta_attention"
    drafts = (integers(0, 1, -1), integers([2, 3], [4, 5], [-1, -1]), integers(0, 1, 0))
    kept = (torch.tensor([0, 66, 67]), torch.tensor([0, 1, 1]), 1)
    return {
        "ragged": Call(name, (*heads(20), *finished(20), states(3).mT.contiguous(), starts)),
        "padded": Call(name, (*heads(3, 5), *finished(3, 5))),
        "raw gates": Call(f"{name}_raw_gates", (*heads(20), *raw(20), states(3), starts)),
        "bounded": Call(f"{name}_raw_gates", (*heads(3, 5), *raw(3, 5)), words={"lower_bound": LOWER}),
        "checkpoints": Call(f"{name}_checkpoints", (*heads(67), *finished(67), states(2), *kept)),
        "step": Call(f"{name}_step", (*heads(3, 1), states(3), *raw(3, 1)), words={"lower_bound": LOWER}),
        "pool": Call(
            f"{name}_step_", (*heads(3, 1), states(5), integers(0, -1, 2), integers(1, -1, 2), *raw(3, 1)), (3,)
        ),
        "verify": Call(f"{name}_verify", (*heads(3, 2), states(8), *drafts, *raw(3, 2)), (3,)),
    }

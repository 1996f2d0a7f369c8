"""Small calls of every operator of gdn."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from gdnspec import ops
from torch import Tensor


@dataclass(frozen=True)
class Call:
    """An operator with arguments. `pools`: which of them it updates."""

    name: str
    args: tuple[Any, ...]
    pools: tuple[int, ...] = ()
    words: dict[str, Any] = field(default_factory=dict)

    @property
    def function(self) -> Callable[..., Any]:
        return getattr(ops, self.name)

    @property
    def operator(self) -> Any:
        getattr(ops, self.name)  # registers it
        return getattr(torch.ops.gdnspec, self.name).default

    def copy(self) -> tuple[Any, ...]:
        return tuple(x.detach().clone() if isinstance(x, Tensor) else x for x in self.args)

    def outputs(self, *args: Any) -> tuple[Tensor, ...]:
        """What it returns, and the pools afterwards; those given stay."""
        given = list(args)
        for i in self.pools:
            given[i] = given[i].clone()
        found = self.function(*given, **self.words)
        found = found if isinstance(found, tuple) else (found,)
        return (*found, *(given[i] for i in self.pools))


def calls(
    dtype: torch.dtype = torch.float32, gates: torch.dtype | None = None, state: torch.dtype | None = None,
    K: int = 4, V: int = 3, times: int = 1,
) -> dict[str, Call]:  # fmt: skip
    """One call of each operator, two of the rule. `gates`: the type of ready gates and of rates. `times`: how many
    rows and slots, in units of the smallest call."""
    gates, state = gates or dtype, state or dtype
    random = torch.Generator().manual_seed(1)

    def normal(*shape: int, of: torch.dtype = dtype) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64).to(of)

    def heads(*lead: int) -> tuple[Tensor, Tensor, Tensor]:
        q, k = (torch.nn.functional.normalize(normal(*lead, 2, K, of=torch.float64), dim=-1).to(dtype) for _ in "qk")
        return q, k, normal(*lead, 4, V)

    def raw(*lead: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return normal(4, of=gates), normal(*lead, 4), normal(4), normal(*lead, 4)

    def slots(count: int, *values: Any) -> Tensor:
        """The same in each of `times` parts of a pool, with so many slots each."""
        one = torch.tensor(values, dtype=torch.int32)
        return torch.cat([torch.where(one < 0, one, one + count * i) for i in range(times)])

    T, B = 7 * times, 3 * times
    g, beta = (torch.rand(T, 4, generator=random, dtype=torch.float64).to(gates) for _ in "gb")
    starts, three = torch.tensor([0, 3, 3, T]), torch.tensor([0, 1, 4], dtype=torch.int32)
    convolved = (normal(T, 6), normal(6, 4), normal(6), starts, normal(5, 6, 3), three)
    carried, skipping, C = torch.tensor([True, True, False]), torch.tensor([0, 1, -1], dtype=torch.int32), 2 * 2 * K
    rates, skipped = (normal(4, of=gates), normal(4)), torch.tensor([0, 3, 5, T])
    gated = (normal(T, C + 4 * K), normal(C + 4 * K, 4), normal(C + 4 * K), normal(T, 4), normal(T, 4), *rates, skipped)
    core = (normal(B, C + 4 * V), normal(B, 4 * V), normal(B, 4), normal(B, 4), normal(C + 4 * V, 4), None, *rates)
    drafts = (slots(8, 0, 1, -1), slots(8, [2, 3], [4, 5], [-1, -1]), slots(0, 0, 1, 0))
    return {
        "ragged": Call("gated_delta_rule", (*heads(T), -g, beta, normal(3, 4, K, V, of=state), starts)),
        "padded": Call("gated_delta_rule", heads(B, 5)),
        "step": Call("gated_delta_rule_step", (*heads(B, 1), normal(B, 4, V, K, of=state), *raw(B, 1))),
        "pool": Call(
            "gated_delta_rule_step_",
            (*heads(B, 1), normal(5 * times, 4, V, K, of=state), slots(5, 0, -1, 2), slots(5, 1, -1, 2), *raw(B, 1)),
            (3,),
        ),
        "verify": Call(
            "gated_delta_rule_verify", (*heads(B, 2), normal(8 * times, 4, V, K, of=state), *drafts, *raw(B, 2)), (3,)
        ),
        "convolution": Call("causal_conv1d", (*convolved, carried), (4,)),
        "convolution without slots": Call("causal_conv1d", (*convolved[:-1], None, carried), (4,)),
        "convolution step": Call(
            "causal_conv1d_step", (normal(B, 6), normal(6, 4), None, normal(5 * times, 6, 3), slots(5, 0, -1, 4)), (3,)
        ),
        "convolution and gates": Call(
            "causal_conv1d_gates", (*gated, normal(5, C + 4 * K, 3), skipping, carried, K), (8,)
        ),
        "layer step": Call(
            "gated_delta_net_step_",
            (*core, normal(V), normal(5 * times, C + 4 * V, 3), slots(5, 3, -1, 1),
             normal(5 * times, 4, V, K, of=state), slots(5, 0, -1, 4)), (9, 11),
        ),
        "norm": Call("gated_rms_norm", (normal(B, 2, V), normal(B, 2, V), normal(V))),
    }  # fmt: skip


def leaves(call: Call, dtype: torch.dtype | None = None) -> list[Any]:
    """The arguments, of which those in floating point are wanted gradients of."""
    return [x.to(dtype or x.dtype).requires_grad_() if _floats(x) else x for x in call.copy()]


def gradients(call: Call, dtype: torch.dtype | None = None, without: int | None = None) -> dict[int, Tensor]:
    """Of all outputs, or of all without one, by argument."""
    args = leaves(call, dtype)
    random = torch.Generator().manual_seed(2)
    given = [torch.randn(x.shape, generator=random).to(x.device, torch.bfloat16) for x in call.outputs(*call.args)]
    outputs = call.outputs(*args)
    pairs = [(x, y.to(x.dtype)) for i, (x, y) in enumerate(zip(outputs, given, strict=True)) if i != without]
    torch.autograd.backward(*zip(*pairs, strict=True))
    return {i: x.grad for i, x in enumerate(args) if _floats(x)}


def _floats(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()

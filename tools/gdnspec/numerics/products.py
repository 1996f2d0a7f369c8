"""Emulates tensor cores for any reference written in matrix products: bfloat16 operands, float32 sums.

The reference runs in float32, and the operands of each product are rounded first. Kernels differ in where they apply a
factor: to either operand, before or after rounding. Operands are therefore also rounded as a multiple of themselves,
which gives errors of the same size at other places; a single emulator would be a matter of luck. For strict workloads,
every operand is a sum of two bfloat16 terms.

A sequence that fits into the smaller chunk is the same computation with the larger one. Three different errors would
then stand behind its part of a budget, and a gradient that cancels leaves an honest kernel with more than twice the
largest of three. So there are more multiples where sequences are short: each is always rounded in nine ways.

A family asks for those of short sequences where it needs them, for gradients. Fresh lines, whose budgets nobody looks
at, have more multiples in every definition.

What several kernels hand on through memory, such as the states at the edges of chunks and their gradients, is in the
operands' type there, also where no product takes it: a reference that takes `stored` applies it to that. Of chunks of
less than 64 tokens nobody keeps so much: there `stored` changes nothing.

A product with a single vector, as in a recurrence over tokens, stays in float32. In a reference that works in chunks it
is rounded too: it is a chunk of one token, which kernels pad to a full one.

Sums, and functions that no standard rounds (exp, solve_triangular), are computed in float64 and rounded to float32.
Where that is not enough, because terms cancel, sums have one order besides (`in_order.py`).
So an emulator's figures depend neither on an order of summation, nor on a processor, nor on the number of threads. A
difference in the last bit of float32 would not stay small: it turns the rounding of an operand elsewhere, and a
gradient with few elements, such as dA_log, had an error that differed by a quarter.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gdnspec.numerics import in_order

NAME = "bfloat16_products"
MULTIPLES = {"": 1.0, "_5_4": 1.25, "_3_2": 1.5}
# By how many tokens a sequence has at most, in chunks of 64: two sizes of chunks are the same to it, or all three.
OF_SHORT = {64: {"_9_8": 1.125, "_11_8": 1.375, "_13_8": 1.625}, 16: {"_7_4": 1.75, "_15_8": 1.875, "_17_16": 1.0625}}
# Of fresh lines: with three ways, one row in twenty left an honest kernel too little (docs/explanation/budgets.md).
OF_FRESH = {f"_{n}_48": n / 48 for n in range(49, 96, 2)}
CHUNKS = (16, 64, 128)
KEPT = 64  # the least tokens in a chunk where kernels keep the states at its edges
PRODUCTS = (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, torch.mm)
# By name, whether a tensor's method or a function of torch. What is missing here is exact, or rounded by IEEE 754.
ROUNDED_BY_NOBODY = {
    "baddbmm", "cumprod", "cumsum", "einsum", "exp", "exp2", "expm1", "linalg_solve_triangular", "log", "log1p", "log2",
    "logsigmoid", "matmul", "mean", "norm", "pow", "prod", "rsqrt", "sigmoid", "silu", "softplus", "sum", "tanh",
}  # fmt: skip


class Draw(NamedTuple):
    """One emulator: its name, its chunk size, and the multiple of themselves as which operands are rounded."""

    name: str
    size: int | None
    multiple: float


def draws(strict: bool, chunked: bool, shortest: int | None = None) -> list[Draw]:
    """The emulators of an ordinary or a strict workload. `chunked`: the reference takes a `chunk_size`, and runs with
    each size. `shortest`: see `rounded_products`."""
    runs: list[tuple[int | None, dict[str, float]]] = [(size, MULTIPLES) for size in (CHUNKS if chunked else (None,))]
    if chunked and shortest is not None:
        runs += [(KEPT, multiples) for most, multiples in OF_SHORT.items() if shortest <= most]
    return [draw for size, multiples in runs for draw in _draws(size, multiples, strict)]


def _draws(size: int | None, multiples: Mapping[str, float], strict: bool) -> list[Draw]:
    start, end = "" if size is None else f"chunk_{size}_", "_two_terms" * strict
    return [Draw(f"{start}{NAME}{ending}{end}", size, multiple) for ending, multiple in multiples.items()]


def rounded_products(
    reference: Callable[..., tuple[Tensor, ...] | Tensor],
    arguments: dict[str, Any],
    strict: bool,
    shortest: int | None = None,
    more: Mapping[str, float] = MappingProxyType({}),
) -> Iterator[tuple[str, tuple[Tensor, ...]]]:
    """Yields (name, values that the reference returns) for each emulator. `arguments` are as stored. `shortest`:
    the fewest tokens that the reference cuts into chunks by themselves, such as those of the shortest sequence that is
    not empty. Without it no sequence counts as short. `more`: further multiples, by the ending of a name,
    which run if anything is rounded."""
    chunked, takes_stored = takes_chunks(reference), "stored" in inspect.signature(reference).parameters
    terms = 2 if strict else 1
    rounds, further = takes_stored, _draws(KEPT if chunked else None, more, strict)
    for draw in (*draws(strict, chunked, shortest), *further):
        if draw in further and not rounds:
            return
        name, size, multiple = draw
        options: dict[str, Any] = {} if size is None else {"chunk_size": size}
        if takes_stored and (size or KEPT) >= KEPT:
            options["stored"] = partial(_rounded, multiple=multiple, terms=terms)
        with _Rounded(multiple, terms, vectors=chunked) as inside:
            values = reference(**arguments, **options)
        rounds |= inside.rounds
        yield name, (values,) if isinstance(values, Tensor) else values


def takes_chunks(reference: Callable[..., Any]) -> bool:
    """Whether the reference takes a chunk size."""
    return "chunk_size" in inspect.signature(reference).parameters


class _Rounded(TorchFunctionMode):
    """Rounds the operands of every matrix product inside; with `vectors`, also of products with a single vector."""

    def __init__(self, multiple: float, terms: int, vectors: bool) -> None:
        super().__init__()
        self.multiple, self.terms = multiple, terms
        self.columns = 1 if vectors else 2  # the least number of columns
        self.rounds = False  # whether there was such a product

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        product = function in PRODUCTS and all(x.dtype == torch.float32 for x in args[:2])
        if product and args[1].shape[-1] >= self.columns:
            self.rounds = True
            a, b = (_rounded(x, self.multiple, self.terms).double() for x in args[:2])
            # Beside the errors of one term an order of summation is nothing.
            return (in_order.product(a, b) if self.terms > 1 else torch.matmul(a, b)).float()
        if getattr(function, "__name__", "") in ROUNDED_BY_NOBODY:
            return _in_float64(function, args, kwargs or {})
        return function(*args, **(kwargs or {}))


def _rounded(x: Tensor, multiple: float, terms: int) -> Tensor:
    return bfloat16_sum(x * multiple, terms) / multiple


def _in_float64(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What it returns for float32 tensors, rounded once."""
    given = [*args, *kwargs.values()]
    if not any(isinstance(x, Tensor) and x.dtype == torch.float32 for x in given):
        return function(*args, **kwargs)

    def widened(x: Any) -> Any:
        return x.double() if isinstance(x, Tensor) and x.dtype == torch.float32 else x

    wide, named = tuple(map(widened, args)), {name: widened(x) for name, x in kwargs.items()}
    unit_lower = function is torch.linalg.solve_triangular and named == {"upper": False, "unitriangular": True}
    found = in_order.solve_unit_lower(*wide) if unit_lower else function(*wide, **named)
    return found.float() if isinstance(found, Tensor) and found.dtype == torch.float64 else found


def bfloat16_sum(x: Tensor, terms: int) -> Tensor:
    """`x` as a sum of `terms` bfloat16 numbers, in float32."""
    total = x.to(torch.bfloat16).to(torch.float32)
    for _ in range(terms - 1):
        total = total + (x - total).to(torch.bfloat16).to(torch.float32)
    return total

"""A call of somebody's gated delta rule, read by the names of its arguments.

flash-linear-attention, the `transformers` package and what follows them call it with q, k, v [B, T, H, D], a forget
gate in log space and beta [B, T, H], states [B, H, K, V], and `cu_seqlens` where a batch is packed into B = 1.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import Any

from gdnspec.model.errors import SpecError

ALIASES = {
    "q": ("q", "query"),
    "k": ("k", "key"),
    "v": ("v", "value"),
    "g": ("g", "gate", "decay"),
    "beta": ("beta",),
    "scale": ("scale", "softmax_scale"),
    "initial_state": ("initial_state", "state", "h0"),
    "cu_seqlens": ("cu_seqlens", "cu_seq_lens_q"),
    "use_qk_l2norm": ("use_qk_l2norm_in_kernel", "use_qk_l2norm"),
}
NEEDED = ("q", "k", "v", "g", "beta")


class NotRecorded(ValueError):
    """A call that no definition describes; why."""


class Binder:
    """Reads calls of one function. Raises `SpecError` where its parameters are not those of a gated delta rule."""

    def __init__(self, function: Callable[..., Any], target: str) -> None:
        try:
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError):
            raise SpecError(f"{target} does not say which arguments it takes") from None
        ordered = [p for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        takes = [p.name for p in parameters.values()]
        lacking = [name for name in NEEDED if not set(takes) & set(ALIASES[name])]
        if lacking:
            named = ", ".join("/".join(ALIASES[name]) for name in lacking)
            raise SpecError(f"{target}({', '.join(takes)}) is no gated delta rule: it takes no {named}")
        self._meaning = {alias: name for name, aliases in ALIASES.items() for alias in aliases}
        self._positions = [self._meaning.get(p.name) for p in ordered]
        self._defaults = {
            self._meaning[p.name]: p.default
            for p in parameters.values()
            if p.name in self._meaning and p.default is not p.empty
        }

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by their name here; what is not given has its default, or is absent. Raises `NotRecorded`."""
        refuse(kwargs)
        found = dict(self._defaults)
        for name, value in zip(self._positions, args, strict=False):
            if name is not None:
                found[name] = value
        for key, value in kwargs.items():
            if (name := self._meaning.get(key)) is not None:
                found[name] = value
        return found


@dataclass(frozen=True)
class Seen:
    """What is recorded of a call without a look at its values: hashable, and the same for calls that are alike."""

    lengths: tuple[int, ...]
    heads: tuple[int, int, int]  # query, key, value: as they came, repeated ones too
    key_size: int
    value_size: int
    carried: bool
    scale: float | None
    normalised: bool  # q and k inside


SLOTS = ("ssm_state_indices", "state_indices", "slots", "initial_state_indices")


def refuse(args: Mapping[str, Any]) -> None:
    """Raises `NotRecorded` for what a call says by name and no definition here has."""
    if args.get("head_first"):
        raise NotRecorded("head_first: heads stand before tokens")
    for name in SLOTS:
        if args.get(name) is not None:
            raise NotRecorded(f"{name}: its states lie in a pool")


def seen(call: Mapping[str, Any], repeats: int = 1) -> Seen:
    """Shapes and switches. `repeats`: how often each query and key head is said to have been repeated to match those of
    v before the call. Raises `NotRecorded`."""
    q, k, v, g, beta = (call[name] for name in NEEDED)
    if g is None or beta is None:
        raise NotRecorded("g or beta is absent")
    if not (q.ndim == k.ndim == v.ndim == 4):
        raise NotRecorded(f"q, k, v have {q.ndim}, {k.ndim} and {v.ndim} dimensions, not 4: [B, T, H, D]")
    batch, tokens, heads, size = k.shape
    if q.shape[-1] != size:
        raise NotRecorded(f"queries of {q.shape[-1]} and keys of {size} elements")
    sab = max(q.shape[2], v.shape[2])
    for name, x in (("q", q), ("v", v), ("g", g), ("beta", beta)):
        wanted = (batch, tokens) if name in "qv" else (batch, tokens, sab)
        if tuple(x.shape[: len(wanted)]) != wanted or (name not in "qv" and x.ndim != 3):
            raise NotRecorded(f"{name} {list(x.shape)} does not go with k {list(k.shape)}: [B, T, ..] is wanted")
    if heads % repeats or q.shape[2] % repeats:
        raise NotRecorded(f"{q.shape[2]} query and {heads} key heads are not repeated {repeats} times")
    lengths = _lengths(call.get("cu_seqlens"), batch, tokens)
    state = call.get("initial_state")
    wanted_state = (len(lengths), sab, size, v.shape[-1])
    if state is not None and tuple(state.shape) != wanted_state:
        raise NotRecorded(f"a state {list(state.shape)} for {len(lengths)} sequences: {list(wanted_state)} is wanted")
    scale = call.get("scale")
    if scale is not None and not isfinite(float(scale)):
        raise NotRecorded("a scale that is not finite")
    default = scale is None or abs(float(scale) - size**-0.5) < 1e-6
    return Seen(
        lengths,
        (q.shape[2], heads, v.shape[2]),
        size,
        v.shape[-1],
        state is not None,
        None if default or scale is None else float(scale),
        bool(call.get("use_qk_l2norm", False)),
    )


def _lengths(bounds: Any, batch: int, tokens: int) -> tuple[int, ...]:
    if bounds is None:
        return (tokens,) * batch
    if batch != 1:
        raise NotRecorded(f"cu_seqlens with a batch of {batch}")
    values = bounds.tolist() if hasattr(bounds, "tolist") else [int(x) for x in bounds]
    lengths = tuple(b - a for a, b in pairwise(values))
    if not lengths or min(lengths) < 0 or sum(lengths) != tokens or values[0] != 0:
        raise NotRecorded(f"cu_seqlens that do not fit {tokens} tokens")
    return lengths

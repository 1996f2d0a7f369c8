"""A call of somebody's gated delta rule, read by the names of its arguments.

flash-linear-attention, the `transformers` package and what follows them call it with q, k, v [B, T, H, D], a forget
gate in log space and beta [B, T, H], states [B, H, K, V], and `cu_seqlens` where a batch is packed into B = 1.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
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
        """Arguments by their name here; what is not given has its default, or is absent."""
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
    heads: tuple[int, int, int]  # query, key, value
    head_size: int
    carried: bool
    scale: float | None
    normalised: bool  # q and k inside


def seen(call: Mapping[str, Any], repeats: int) -> Seen:
    """Shapes and switches. `repeats`: how often each query and key head was repeated to match those of v before the
    call. Raises `NotRecorded`."""
    q, k, v = call["q"], call["k"], call["v"]
    if not (q.ndim == k.ndim == v.ndim == 4):
        raise NotRecorded(f"q, k, v have {q.ndim}, {k.ndim} and {v.ndim} dimensions, not 4: [B, T, H, D]")
    batch, tokens, heads, size = k.shape
    if v.shape[-1] != size:
        raise NotRecorded(f"keys of {size} and values of {v.shape[-1]} elements: no definition has two head sizes")
    if heads % repeats or q.shape[2] % repeats:
        raise NotRecorded(f"{q.shape[2]} query and {heads} key heads are not repeated {repeats} times")
    lengths = (tokens,) * batch
    bounds = call.get("cu_seqlens")
    if bounds is not None:
        if batch != 1:
            raise NotRecorded(f"cu_seqlens with a batch of {batch}")
        values = [int(x) for x in (bounds.tolist() if hasattr(bounds, "tolist") else bounds)]
        lengths = tuple(b - a for a, b in pairwise(values))
        if not lengths or min(lengths) < 0 or sum(lengths) != tokens:
            raise NotRecorded(f"cu_seqlens that do not fit {tokens} tokens")
    scale = call.get("scale")
    default = scale is None or abs(float(scale) - size**-0.5) < 1e-6
    return Seen(
        lengths,
        (q.shape[2] // repeats, heads // repeats, v.shape[2]),
        size,
        call.get("initial_state") is not None,
        None if default or scale is None else float(scale),
        bool(call.get("use_qk_l2norm", False)),
    )

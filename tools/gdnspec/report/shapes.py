"""Describe a measurement in words: the device, the heads of a preset, the lengths of a batch."""

from collections.abc import Mapping, Sequence

from gdnspec.catalog.definitions import Found
from gdnspec.model import roles
from gdnspec.model.definition import Definition
from gdnspec.model.trace import Trace

SPELLED_WITH_A_VOWEL = "AEFHILMNORSX"  # "an NVIDIA H200", "an x86-64"


def device(trace: Trace) -> str:
    """The device's own name, or its slug if that is unknown."""
    name = trace.environment.get("device")
    return name if isinstance(name, str) and name else trace.device


def article(name: str) -> str:
    word = name.split(" ")[0]
    spelled = word.isupper() or any(c.isdigit() for c in word)
    vowel = word[:1].upper() in SPELLED_WITH_A_VOWEL if spelled else word[:1].lower() in "aeiou"
    return "an" if vowel else "a"


def heads(found: Found, preset: str) -> str:
    """Each number of heads that a preset binds, in the order of the axes: `16/32`. Empty if it binds none."""
    bound = found.family.preset(preset)
    if bound is None:
        return ""
    definition = found.definition
    named = [name for name in definition.const_axes() if name in definition.head_axes and name in bound.axes]
    return "/".join(dict.fromkeys(str(bound.axes[name]) for name in named))


def lengths(definition: Definition, axes: Mapping[str, int], each: Sequence[int] | None) -> str:
    """`4 sequences of 2,048 tokens each`, or `a batch of 64`."""
    if each:
        least, most = min(each), max(each)
        if len(each) == 1:
            return f"1 sequence of {_tokens(most)}"
        if least == most:
            return f"{len(each)} sequences of {_tokens(most)} each"
        return f"{len(each)} sequences of {least:,} to {_tokens(most)}, {sum(each):,} in total"
    batch, tokens = roles.batch(definition, axes), roles.tokens(definition, axes)
    if batch and tokens != batch:
        return f"a batch of {batch:,}, {_tokens(tokens)} in total"
    if batch:
        return f"a batch of {batch:,}"
    return ", ".join(f"{name} {size:,}" for name, size in axes.items()) or "no axis that varies"


def _tokens(count: int) -> str:
    return f"{count:,} token" if count == 1 else f"{count:,} tokens"

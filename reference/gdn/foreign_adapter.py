"""A module that stands before a function of FlashInfer-Bench: what gdnspec passes by name arrives by place, gates
as the function takes them, and what it returns comes back in the order that a definition here has."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from .foreign_words import EMPTY, GATES, OTHER_GATE, SCALE_0, WRITTEN

if TYPE_CHECKING:
    from gdnspec.family import Meaning

IN_ORDER = """
def _in_order(result):
    if isinstance(result, dict):
        result = tuple(result[name] for name in {theirs})
    result = tuple(result) if isinstance(result, (tuple, list)) else (result,)
    return tuple(result[i] for i in {order})
"""
EMPTY_KEPT = """
def _empty_kept(result, cu_seqlens, initial_state):
    state = result[{place}].clone()
    for n in (cu_seqlens[1:] == cu_seqlens[:-1]).nonzero().flatten().tolist():
        if initial_state is not None and not state[n].any():
            state[n] = initial_state[n]
    return (*result[:{place}], state, *result[{place} + 1:])
"""


def adapter(meaning: "Meaning", entry: str, returns: bool, aside: Collection[str]) -> str:
    """The text of the module. `entry` is file.py::function; it `returns` outputs, or takes places for them.

    `aside`: what is done for a function, so that it is judged on the rest: a default scale written out where there is
    none, g read the other way, zeros after an empty sequence taken for its initial state."""
    assert meaning.ours is not None
    file, function = entry.split("::")
    definition = meaning.ours.definition
    names = [tensor.name for tensor in definition.inputs]
    outputs = [tensor.name for tensor in definition.outputs]
    theirs = [meaning.renamed.get(name, name) for name in meaning.theirs.outputs]
    lines = [f"def run({', '.join(names if returns else [*names, *outputs])}):"]
    lines += _defaults(meaning, names)
    if meaning.raw_gates:
        lines.append(_raw_from_ready(meaning))
    elif (gate := _gate(meaning, OTHER_GATE in aside)) is not None:
        lines.append(f"    g = None if g is None else torch.{'exp' if gate == 'linear' else 'log'}(g)")
    if "scale" in names and ({WRITTEN, SCALE_0} & {*aside} or not may_lack_scale(meaning)):
        size = "q.shape[-1]" if "q" in names else _key_size(meaning)  # it may serve other heads too
        lines.append(f"    scale = {size} ** -0.5 if scale is None else scale")
    passed = ", ".join(_passed(meaning, names))
    helpers = ""
    if returns:
        lines.append(f"    result = _in_order(_entry({passed}))")
        order = tuple(theirs.index(name) for name in outputs)
        helpers = IN_ORDER.format(theirs=tuple(meaning.theirs.outputs), order=order)
        if EMPTY in aside and "final_state" in outputs:
            helpers += f"\n{EMPTY_KEPT.format(place=outputs.index('final_state'))}"
            lines.append("    result = _empty_kept(result, cu_seqlens, initial_state)")
        lines.append("    return result")
    else:
        lines.append(f"    return _entry({', '.join([passed, *theirs])})")
    head = [
        '"""What gdnspec passes by name, by its order: as FlashInfer-Bench calls it."""', "", "import torch",
        f"from {file.removesuffix('.py').replace('/', '.')} import {function} as _entry", "",
    ]  # fmt: skip
    return "\n".join([*head, helpers, "", *lines, ""])


def may_lack_scale(meaning: "Meaning") -> bool:
    """Whether the function may be called without a scale."""
    inputs = meaning.theirs.inputs.items()
    return any(spec.optional for name, spec in inputs if meaning.renamed.get(name, name) == "scale")


def _defaults(meaning: "Meaning", names: list[str]) -> list[str]:
    """What may be left out here and is always given there, with its default."""
    assert meaning.ours is not None
    if not {"q", "v", "cu_seqlens"} <= set(names):
        return []
    heads = "max(q.shape[1], v.shape[1])"
    sizes = "v.shape[-1], q.shape[-1]"
    if meaning.ours.definition.conventions.state_layout == "k_first":
        sizes = "q.shape[-1], v.shape[-1]"
    shapes = {
        "g": f"v.shape[0], {heads}", "beta": f"v.shape[0], {heads}",
        "initial_state": f"len(cu_seqlens) - 1, {heads}, {sizes}",
    }  # fmt: skip
    needed = {meaning.renamed.get(name, name) for name, spec in meaning.theirs.inputs.items() if not spec.optional}
    return [
        f"    if {x.name} is None:\n"
        f"        {x.name} = torch.full(({shapes[x.name]}), {float(x.default or 0)}, device=v.device)"
        for x in meaning.ours.definition.inputs
        if x.optional and x.name in shapes and x.name in needed
    ]


def _passed(meaning: "Meaning", names: list[str]) -> list[str]:
    """Arguments in their order. What has no like here is one that may be left out."""
    assert meaning.ours is not None
    types = {tensor.name: tensor.dtype for tensor in meaning.ours.definition.inputs}
    passed = []
    for theirs, spec in meaning.theirs.inputs.items():
        mine = meaning.renamed.get(theirs, theirs)
        if mine not in names and not (meaning.raw_gates and mine in ("A_log", "a", "dt_bias", "b")):
            passed.append("None")
        elif spec.shape is not None and mine in types and spec.dtype not in (types[mine], "unknown"):
            passed.append(f"None if {mine} is None else {mine}.to(torch.{spec.dtype})")
        else:
            passed.append(mine)
    return passed


def _gate(meaning: "Meaning", other: bool) -> str | None:
    """How the function is to get g, where that is not as ours has it."""
    assert meaning.ours is not None
    here = meaning.ours.definition.conventions.decay_gate
    if here not in GATES or not any(meaning.renamed.get(name, name) == "g" for name in meaning.theirs.inputs):
        return None
    there = meaning.gate or here
    if other:
        there = "log" if there == "linear" else "linear"
    return there if there != here else None


def _key_size(meaning: "Meaning") -> int:
    return meaning.heads.get("head_size") or meaning.heads["key_head_dim"]


def _raw_from_ready(meaning: "Meaning") -> str:
    """Raw gates in float32 that give the alpha and beta that arrive."""
    assert meaning.ours is not None
    log = meaning.ours.definition.conventions.decay_gate == "log"
    return (
        "    shape = (*v.shape[:1], max(q.shape[1], v.shape[1]))\n"
        f"    g = {'torch.zeros' if log else 'torch.ones'}(shape, device=v.device) if g is None else g\n"
        "    beta = torch.ones(shape, device=v.device) if beta is None else beta\n"
        f"    rate = {'-g' if log else '-torch.log(g)'}\n"
        "    a = torch.where(rate > 30, rate, torch.log(torch.expm1(rate.clamp(max=30)))).clamp(-200.0, 1e30)\n"
        "    b = torch.logit(beta)\n"
        "    A_log = dt_bias = torch.zeros(shape[1], device=v.device)"
    )

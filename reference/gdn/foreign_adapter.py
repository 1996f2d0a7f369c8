"""A module that stands before a function of FlashInfer-Bench: what gdnspec passes by name arrives by place, gates
as the function takes them, and what it returns comes back in the order that a definition here has."""

from collections.abc import Collection, Mapping
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


# --- in place of a function of FlashInfer -----------------------------------------------------------------------

DECODE, DECODE_BF16, PREFILL = "gdn_decode_k_last", "gdn_decode_k_last_bf16_state", "gdn_prefill_k_last"
DECODE_RUN = """\
def run(q, k, v, A_log, a, dt_bias, b, state=None, scale=None):
    rules = {rules}
    if state is None or q.shape[1] != 1:
        raise ValueError("this solution takes one token a sequence, and states in `state`: no pool, no draft tokens")
    if state.dtype not in rules:
        raise ValueError(f"this solution does not serve states in {{state.dtype}}")
    output, new_state = rules[state.dtype](q, k, v, state, A_log, a, dt_bias, b, scale, True)
    state.copy_(new_state)  # FlashInfer updates it in place
    return output, state
"""
PREFILL_RUN = """\
def run(q, k, v, cu_seqlens, a=None, b=None, state=None, scale=None):
    cu_seqlens = cu_seqlens.to(torch.int64)
    return gdn_prefill_k_last(q, k, v, a, b, cu_seqlens, state, scale)
"""


def applied(served: Collection[str], axes: Mapping[str, int]) -> dict[str, str]:
    """See `gdnspec.family.Foreign.applied`.

    FlashInfer 0.7.2 names a call by its heads, such as gdn_decode_qk16_v32_d128. It passes the arguments that its
    template for the call lists, by name and without those that are None. So `use_qk_l2norm`, `output` and
    `output_final_state` never arrive. Both of its decode functions have one name, though their states lie differently:
    this is for the one with states [V, K], `gated_delta_rule_decode_pretranspose`.

    A name has the query heads, value heads and the head size."""
    if "head_size" not in axes:
        return {}
    heads = f"qk{axes['num_q_heads']}_v{axes['num_v_heads']}_d{axes['head_size']}"
    found = {}
    types = {DECODE: "torch.float32", DECODE_BF16: "torch.bfloat16"}
    rules = ", ".join(f"{dtype}: {name}" for name, dtype in types.items() if name in served)
    if rules:
        found[f"gdn_decode_{heads}"] = DECODE_RUN.format(rules=f"{{{rules}}}")
    if PREFILL in served:
        found[f"gdn_prefill_{heads}"] = PREFILL_RUN
    return found

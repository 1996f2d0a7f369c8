"""What a definition of FlashInfer-Bench says, in the words of the one here that is nearest: the same, other names, or
what cannot be said or contradicts it."""

import ast
from dataclasses import dataclass, field

from gdnspec.catalog.definitions import Found, definitions, preset
from gdnspec.exchange.foreign import Definition
from gdnspec.exchange.layout import MARK, named
from gdnspec.exchange.outward import definition_json, hold
from gdnspec.model.errors import SpecError

RENAMED = {"state": "initial_state", "new_state": "final_state", "seq_len": "draft_tokens", "pool_size": "num_slots"}
STAGES = {"mtp": "verify"}
RAW = ("A_log", "a", "dt_bias", "b")


@dataclass
class Meaning:
    """`ours` is None where no definition here is near. `same`: to the letter. `renamed`: theirs to ours.
    `differences`: each a sentence; with `lost`, what keeps it from being said here at all."""

    theirs: Definition
    ours: Found | None = None
    preset: str = ""
    same: bool = False
    renamed: dict[str, str] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    @property
    def raw_gates(self) -> bool:
        """Gates arrive raw where ours takes alpha and beta ready."""
        ours = self.ours.definition.conventions if self.ours else None
        return ours is not None and ours.decay_gate != "raw" and all(name in self.theirs.inputs for name in RAW)


def meaning(theirs: Definition) -> Meaning:
    """Reads a definition by its tag, else by its name; compares inputs and outputs, and looks into its reference."""
    found = Meaning(theirs)
    _named(found)
    if found.ours is None:
        known = ", ".join(definitions())
        found.lost.append(f"no definition here is like it: by its name it would be one of {known}")
        return found
    if _to_the_letter(found):
        found.same = True
        return found
    _compare_inputs(found)
    _compare_outputs(found)
    _look_into(found)
    return found


def _named(found: Meaning) -> None:
    said = named(found.theirs.name)
    tag = next((tag.split(":", 1)[1] for tag in found.theirs.tags if tag.startswith(f"{MARK}:")), None)
    if said is None:
        return
    name, found.preset = said
    if tag is None:
        stage = name.split("_")[1]
        name = name.replace(f"gdn_{stage}", f"gdn_{STAGES.get(stage, stage)}", 1)
        name = name.replace("_v_last", "_k_first")
    found.ours = definitions().get(tag or name)


def _to_the_letter(found: Meaning) -> bool:
    assert found.ours is not None
    heads = preset(found.preset)
    assert heads is not None
    try:
        hold(found.ours)
        mine = Definition.model_validate(definition_json(found.ours, heads))
    except (SpecError, KeyError):
        return False
    return mine == found.theirs


def _compare_inputs(found: Meaning) -> None:
    assert found.ours is not None
    ours = {tensor.name: tensor for tensor in found.ours.definition.inputs}
    name = found.ours.definition.name
    for theirs, spec in found.theirs.inputs.items():
        mine = theirs if theirs in ours else RENAMED.get(theirs, theirs)
        if mine not in ours:
            if not (found.raw_gates and theirs in RAW):
                found.lost.append(f"input {theirs!r} has no like in {name}")
            continue
        if mine != theirs:
            found.renamed[theirs] = mine
        if spec.dtype != ours[mine].dtype:
            found.differences.append(f"{theirs} is {spec.dtype}, {ours[mine].dtype} here")
        if spec.optional and not ours[mine].optional:
            found.differences.append(f"{theirs} may be left out, never here")
    if found.raw_gates:
        kind = {"linear": "alpha itself", "log": "the logarithm of alpha"}[found.ours.definition.conventions.decay_gate]
        found.differences.append(f"its gates are raw (A_log, a, dt_bias, b): {name} takes {kind} and beta")
    elif "g" in found.theirs.inputs and "g" in ours:
        log = "exp(g" in found.theirs.reference.replace(" ", "") or "g.exp(" in found.theirs.reference
        if log != (found.ours.definition.conventions.decay_gate == "log"):
            there, here = ("a logarithm", "alpha itself") if log else ("alpha itself", "a logarithm")
            found.differences.append(f"its reference reads g as {there}: in {name} it is {here}")
    given = {found.renamed.get(x, x) for x in found.theirs.inputs} | ({"g", "beta"} if found.raw_gates else set())
    for missing in [x for x in ours if x not in given]:
        found.differences.append(f"it has no {missing!r}, an input of {name}")


def _compare_outputs(found: Meaning) -> None:
    assert found.ours is not None
    ours = {tensor.name: tensor for tensor in found.ours.definition.outputs}
    for theirs, spec in found.theirs.outputs.items():
        mine = theirs if theirs in ours else RENAMED.get(theirs, theirs)
        if mine not in ours:
            found.lost.append(f"output {theirs!r} has no like in {found.ours.definition.name}")
        elif mine != theirs:
            found.renamed[theirs] = mine
        if mine in ours and spec.dtype != ours[mine].dtype:
            found.differences.append(f"{theirs} is {spec.dtype}, {ours[mine].dtype} here")


def _look_into(found: Meaning) -> None:
    """Where the text of a reference says what this specification says otherwise."""
    assert found.ours is not None
    try:
        tree = ast.parse(found.theirs.reference)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        found.lost.append("its reference cannot be read as Python")
        return
    text = ast.unparse(tree)
    norm = found.ours.definition.conventions.qk_norm
    if norm != "none" and not any(word in text for word in ("rsqrt", "norm(", "normalize(")):
        found.differences.append("its reference takes no L2 norm of q and k: here it is, by default")
    if "scale == 0" in text:
        found.differences.append("a scale of 0.0 is its default scale: here 0.0 is 0.0")
    if "cu_seqlens" in text and "continue" in text and "zeros" in text:
        found.differences.append("an empty sequence ends with zeros in its reference: here with its initial state")
    if "F.softplus" in text and "threshold" not in text:
        found.differences.append("its softplus is linear above 20: here it has no threshold (2e-9 apart at most)")

"""A recorded call as a workload line of a definition."""

from typing import Any

from gdnspec.capture.bound import NotRecorded, Seen
from gdnspec.catalog.definitions import Found, definitions
from gdnspec.model.definition import Definition
from gdnspec.model.errors import SpecError

SERVED = "prefill of whole tensors, or decode of one token, with q, k, v and states of their own"
DOUBLED = "allow_neg_eigval"  # twice the sigmoid: a write strength of up to 2
BOTH = {"key_head_dim", "value_head_dim"}


def recordable(definition: Definition) -> bool:
    """Whether calls of a gated delta rule are calls of this definition."""
    names = {tensor.name for tensor in definition.inputs}
    if definition.conventions.packing == "ragged":
        return {"q", "k", "v", "g", "beta", "cu_seqlens"} <= names and "checkpoint_interval" not in names
    return definition.conventions.packing == "one_token" and {"q", "state", "a"} <= names


def hold(definition: Definition) -> None:
    """Raises `SpecError` where calls of a gated delta rule are not calls of this definition."""
    if not recordable(definition):
        those = ", ".join(name for name, found in definitions().items() if recordable(found.definition))
        raise SpecError(f"{definition.name} cannot be recorded from a gated delta rule: {SERVED}: {those}")


def hold_sizes(definition: Definition, call: Seen) -> None:
    """Raises `NotRecorded` where keys and values differ in size, and a definition has one size for both."""
    if call.key_size == call.value_size or set(definition.const_axes()) >= BOTH:
        return
    two = {name: x.definition for name, x in definitions().items() if set(x.definition.const_axes()) >= BOTH}
    fit = [name for name, x in two.items() if recordable(x) and x.stage == definition.stage]
    sizes = f"keys of {call.key_size} and values of {call.value_size} elements"
    why = f"{sizes}, and {definition.name} has one size for both"
    if fit:
        raise NotRecorded(f"{why}: --definition {' or '.join(fit)} records them")
    alike = [name for name, x in two.items() if x.stage == definition.stage] or list(two)
    raise NotRecorded(f"{why}; {', '.join(alike)} have two, and take more than a gated delta rule is called with")


def serves(definition: Definition, call: Seen) -> bool:
    """Decode: one token each, from a state. Prefill: whatever is not that."""
    is_decode = call.carried and all(length == 1 for length in call.lengths)
    return is_decode == (definition.stage == "decode")


def line(
    found: Found, call: Seen, name: str, seed: int, repeats: int = 1, tensors: str | None = None
) -> dict[str, Any]:
    """The workload but for its weight: drawn from `seed` where no tensors were kept. `repeats`: how often query and key
    heads were repeated before the call."""
    definition = found.definition
    q, k, v = call.heads
    heads, one = f"heads-{q // repeats}x{k // repeats}x{v}", call.key_size == call.value_size
    sizes = f"d{call.key_size}" if one else f"k{call.key_size}-v{call.value_size}"
    data: dict[str, Any] = {"name": name, "suite": "performance", "preset": f"{heads}-{sizes}"}
    if definition.stage == "decode":
        data["axes"] = {"batch_size": len(call.lengths)}
    else:
        data["axes"] = {"total_seq_len": sum(call.lengths), "num_seqs": len(call.lengths)}
        data["sequence_lengths"] = list(call.lengths)
        if not call.carried:
            data["omit"] = ["initial_state"]
    scalars: dict[str, Any] = {} if call.scale is None else {"scale": call.scale}
    if definition.conventions.qk_norm == "optional_l2":
        scalars["use_qk_l2norm"] = call.normalised
    if any(tensor.name == DOUBLED for tensor in definition.inputs):
        scalars[DOUBLED] = True  # it holds what a plain sigmoid gives as well
    if scalars:
        data["scalars"] = scalars
    data.update({"tensors": tensors} if tensors else {"regime": "typical", "seed": seed})
    return data

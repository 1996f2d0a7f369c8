"""A recorded call as a workload line of a definition."""

from typing import Any

from gdnspec.catalog.definitions import Found
from gdnspec.model.definition import Definition
from gdnspec.model.errors import SpecError
from gdnspec.recording.bound import Seen

SERVED = "prefill of whole tensors, or decode of one token, with q, k, v and states of their own"


def hold(definition: Definition) -> None:
    """Raises `SpecError` where calls of a gated delta rule are not calls of this definition."""
    names = {tensor.name for tensor in definition.inputs}
    ragged = definition.conventions.packing == "ragged" and "checkpoint_interval" not in names
    plain = definition.conventions.packing == "one_token" and {"q", "state", "a"} <= names
    if not (ragged or plain):
        raise SpecError(f"{definition.name} cannot be recorded from a gated delta rule: {SERVED}")


def serves(definition: Definition, call: Seen) -> bool:
    """Decode: one token each, from a state. Prefill: whatever is not that."""
    is_decode = call.carried and all(length == 1 for length in call.lengths)
    return is_decode == (definition.stage == "decode")


def line(found: Found, call: Seen, name: str, seed: int, tensors: str | None = None) -> dict[str, Any]:
    """The workload but for its weight: drawn from `seed` where no tensors were kept."""
    definition = found.definition
    q, k, v = call.heads
    data: dict[str, Any] = {"name": name, "suite": "performance", "preset": f"heads-{q}x{k}x{v}-d{call.head_size}"}
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
    if scalars:
        data["scalars"] = scalars
    data.update({"tensors": tensors} if tensors else {"regime": "typical", "seed": seed})
    return data

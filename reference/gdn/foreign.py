"""How FlashInfer-Bench, a public benchmark, has the definitions of this family.

A definition of that format has its heads in its name and in its axes: one of these with each preset. What it may say
otherwise is in `foreign_words`.
"""

import re
from collections.abc import Collection, Mapping
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from gdnspec.family import Array, Definition, NotExpressed, Workload

from .foreign_adapter import adapter, applied, may_lack_scale
from .foreign_words import EMPTY, GATES, NO_NORM, OTHER_GATE, SCALE_0, WRITTEN, compare

if TYPE_CHECKING:
    from gdnspec.family import Meaning, Text

NAME = re.compile(r"gdn_([a-z]+)_(?:qk\d+|q\d+_k\d+)_v\d+_d\d+(?:_[a-z0-9]+)*")
STAGES = {"mtp": "verify"}


class GatedDeltaNet:
    """A `gdnspec.family.Foreign`."""

    aliases: Mapping[str, tuple[str, ...]] = {
        "q": ("query",), "k": ("key",), "v": ("value",), "g": ("gate", "decay", "alpha"), "output": ("o", "out"),
        "initial_state": ("state", "h0"), "final_state": ("new_state", "ht"), "state": ("initial_state",),
        "new_state": ("final_state",), "pool": ("initial_state", "state", "ssm_state"), "cu_seqlens": ("cu_seq_lens",),
        "initial_slots": ("initial_state_indices",), "state_slots": ("state_indices",), "x": ("hidden_states",),
        "conv_states": ("conv_state",), "recurrent_states": ("ssm_state",), "qkv": ("mixed_qkv",),
        "read_slots": ("initial_state_indices", "state_indices"), "use_qk_l2norm": ("use_qk_l2norm_in_kernel",),
    }  # fmt: skip
    raw = ("A_log", "a", "dt_bias", "b")
    ready: Mapping[str, str] = {"a": "g", "b": "beta"}
    asides = (NO_NORM, SCALE_0, EMPTY, WRITTEN, OTHER_GATE)

    # --- names --------------------------------------------------------------------------------------------------

    def unsaid(self, definition: Definition) -> str | None:
        two = "key_head_dim" in definition.const_axes()
        return "has two head sizes: names in FlashInfer-Bench have one" if two else None

    def name(self, definition: str, axes: Mapping[str, int]) -> str:
        """`gdn_decode_k_last` with 4, 4, 8 heads of 128 is `gdn_decode_qk4_v8_d128_k_last`."""
        family, stage, rest = definition.split("_", 2)
        q, k, v, d = (axes[name] for name in ("num_q_heads", "num_k_heads", "num_v_heads", "head_size"))
        heads = f"qk{q}" if q == k else f"q{q}_k{k}"
        return f"{family}_{stage}_{heads}_v{v}_d{d}_{rest}"

    def stage(self, name: str) -> str | None:
        match = NAME.fullmatch(name)
        return STAGES.get(match[1], match[1]) if match else None

    def preset(self, axes: Mapping[str, int]) -> str:
        q, k, v = (axes.get(f"num_{x}_heads") for x in "qkv")
        size = axes.get("head_size", axes.get("key_head_dim"))
        value = axes.get("value_head_dim", size)
        return f"heads-{q or k}x{k}x{v}-" + (f"d{size}" if size == value else f"k{size}-v{value}")

    # --- meaning ------------------------------------------------------------------------------------------------

    def computed(self, definition: Definition) -> str:
        kind = {"linear": "alpha itself", "log": "the logarithm of alpha"}[definition.conventions.decay_gate]
        return f"its gates are raw (A_log, a, dt_bias, b): {definition.name} takes {kind} and beta"

    def compare(self, found: "Meaning", text: "Text") -> None:
        compare(found, text)

    # --- workloads ----------------------------------------------------------------------------------------------

    def tensors(self, found: "Meaning", tensors: dict[str, Array], drawn: Collection[str]) -> list[str]:
        if found.raw_gates and not drawn:
            self._ready_gates(found, tensors)
        elif found.gate is not None and "g" in tensors:
            g = tensors["g"].values().astype(np.float64)
            with np.errstate(divide="ignore"):  # a reset: its logarithm is -inf
                tensors["g"] = Array("float32", (np.exp(g) if found.gate == "log" else np.log(g)).astype(np.float32))
            return ["g as this definition takes it, where it was " + GATES[found.gate]]
        return []

    def _ready_gates(self, found: "Meaning", tensors: dict[str, Array]) -> None:
        """g and beta from A_log, a, dt_bias and b, computed in float64 and rounded to float32."""
        assert found.ours is not None
        lacking = [name for name in self.raw if name not in tensors]
        if lacking:
            raise NotExpressed(f"it gives no {', '.join(lacking)}")
        A_log, a, dt_bias, b = (tensors.pop(name).values().astype(np.float64) for name in self.raw)
        log_alpha = -np.exp(A_log) * np.logaddexp(0.0, a + dt_bias)
        log = found.ours.definition.conventions.decay_gate == "log"
        tensors["g"] = Array("float32", (log_alpha if log else np.exp(log_alpha)).astype(np.float32))
        tensors["beta"] = Array("float32", (1.0 / (1.0 + np.exp(-b))).astype(np.float32))

    def scalars(self, found: "Meaning", kept: dict[str, Any]) -> list[str]:
        assert found.ours is not None
        notes = []
        size = found.heads.get("head_size", found.heads.get("key_head_dim"))
        scale = kept.get("scale")
        if scale is not None and scale == 0 and SCALE_0 in found.aside:
            notes.append("scale 0.0, which there means the default: left out")
            del kept["scale"]
        elif scale is not None and size and abs(float(scale) - 1 / sqrt(size)) < 1e-6:
            del kept["scale"]  # the default, written out
        elif scale is not None:
            kept["scale"] = float(scale)
        if any(tensor.name == "use_qk_l2norm" for tensor in found.ours.definition.inputs):
            kept.setdefault("use_qk_l2norm", False)  # its q and k are used as they are
        return notes

    # --- solutions ----------------------------------------------------------------------------------------------

    def supports(self, found: "Meaning") -> list[str]:
        assert found.ours is not None
        definition = found.ours.definition
        if found.raw_gates:
            raise NotExpressed(f"it takes raw gates, {definition.name} has them ready")
        says = found.same or "use_qk_l2norm" in found.theirs.inputs
        return ["not use_qk_l2norm"] if not says and definition.conventions.qk_norm == "optional_l2" else []

    def adapter(self, found: "Meaning", entry: str, returns: bool, aside: Collection[str] | None = None) -> str:
        return adapter(found, entry, returns, {WRITTEN} if aside is None else aside)

    def applied(self, served: Collection[str], axes: Mapping[str, int]) -> Mapping[str, str]:
        return applied(served, axes)

    # --- judging ------------------------------------------------------------------------------------------------

    def unasked(self, found: "Meaning", line: Workload) -> str:
        from .regimes import GENERATORS

        above = found.raw_gates and line.regime and GENERATORS[line.regime].beta_max > 1
        return "raw gates give no beta above 1" if above else ""

    def concerns(self, found: "Meaning", word: str, line: Workload) -> bool:
        assert found.ours is not None
        inputs = {tensor.name for tensor in found.ours.definition.inputs}
        if word == NO_NORM:
            return "use_qk_l2norm" in inputs and line.scalars.get("use_qk_l2norm") is not False
        if word == SCALE_0:
            return line.scalars.get("scale") == 0
        if word == EMPTY:
            carried = "initial_state" in inputs and "initial_state" not in line.omit
            return 0 in (line.sequence_lengths or ()) and carried
        if word == WRITTEN:
            return may_lack_scale(found) and line.scalars.get("scale") is None
        return "g" in inputs and "g" not in line.omit and not found.raw_gates

    def put_aside(self, words: Collection[str], scalars: dict[str, Any]) -> None:
        if NO_NORM in words:
            scalars["use_qk_l2norm"] = False
        if SCALE_0 in words:
            scalars.pop("scale", None)

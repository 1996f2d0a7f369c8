"""Convert a workload of FlashInfer-Bench to a line here, with the definition's names of tensors and form of gates."""

import hashlib
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdnspec.inputs.array import CARRIER, Array, encode
from gdnspec.inputs.contract import NotExpressed
from gdnspec.inputs.raw import read_raw
from gdnspec.inputs.tensor_file import encoded
from gdnspec.interop.foreign import Trace
from gdnspec.interop.meaning import Meaning
from gdnspec.model import roles
from gdnspec.model.dtypes import FLOATS
from gdnspec.model.errors import SpecError

Json = dict[str, Any]


def line_json(meaning: Meaning, trace: Trace, root: Path, out: Path) -> tuple[Json, list[str]]:
    """Returns the line, and notes on what was changed. Writes its tensors below `out`. Raises `NotExpressed`."""
    assert meaning.ours is not None
    definition = meaning.ours.definition
    notes: list[str] = []
    tensors, scalars, drawn = _values(meaning, trace, root)
    name = re.sub(r"[^A-Za-z0-9_.\-]", "_", trace.workload.uuid)[:100]
    name = name if name[:1].isalnum() else f"w{name}"[:100]
    line: Json = {"name": name, "suite": "performance", "preset": meaning.preset}
    axes = {meaning.axes.get(axis, axis): size for axis, size in trace.workload.axes.items()}
    line["axes"] = {axis.name: axes[axis.name] for axis in definition.var_axes() if axis.name in axes}
    if (bounds := roles.bounds(definition)) in tensors:
        line["sequence_lengths"] = np.diff(tensors[bounds].data.astype(np.int64)).tolist()
    notes += meaning.format.tensors(meaning, tensors, drawn)
    line |= _scalars(meaning, scalars, notes)
    wanted = [t for t in definition.inputs if not t.is_scalar]
    omitted = [t.name for t in wanted if t.name not in tensors and t.optional and t.name not in drawn]
    if omitted:
        line["omit"] = omitted
    if drawn:
        seed = int.from_bytes(hashlib.sha256(trace.workload.uuid.encode()).digest()[:7], "big")
        notes.append(f"{', '.join(sorted(drawn))} are random there, and drawn here with the regime typical")
        return line | {"regime": "typical", "seed": seed}, notes
    lacking = [t.name for t in wanted if t.name not in tensors and t.name not in omitted]
    if lacking:
        raise NotExpressed(f"it has no {', '.join(lacking)}")
    kept = {t.name: _cast(t.name, tensors[t.name], t.dtype, notes) for t in wanted if t.name in tensors}
    file = out / f"{definition.name}.tensors" / f"{name}.safetensors"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"".join(bytes(piece) for piece in encoded(kept)))
    return line | {"tensors": f"{file.parent.name}/{file.name}"}, notes


def _values(meaning: Meaning, trace: Trace, root: Path) -> tuple[dict[str, Array], Json, set[str]]:
    """Tensors and scalars by the names here, and the names of tensors to be drawn."""
    tensors: dict[str, Array] = {}
    scalars: Json = {}
    drawn: set[str] = set()
    assert meaning.ours is not None
    bounding = roles.bounding(meaning.ours.definition)
    for theirs, spec in trace.workload.inputs.items():
        mine = meaning.renamed.get(theirs, theirs)
        if spec.type == "scalar":
            scalars[mine] = spec.value
        elif spec.type == "random":
            if mine in bounding or meaning.theirs.inputs.get(theirs) is None:
                raise NotExpressed(f"{theirs} is random, but nothing says how to draw it")
            drawn.add(mine)
        else:
            tensors[mine] = _tensor(root, str(spec.path), str(spec.tensor_key))
    return tensors, scalars, drawn


def _tensor(root: Path, path: str, key: str) -> Array:
    file = (root / path).resolve()
    if not file.is_relative_to(root.resolve()):
        raise NotExpressed(f"{path!r} leads out of the dataset")
    try:
        found = read_raw(file)
    except SpecError as error:
        raise NotExpressed(str(error)) from None
    if key not in found:
        raise NotExpressed(f"{path} has no tensor {key!r}")
    raw = found[key]
    return Array(raw.dtype, np.frombuffer(raw.data, dtype=CARRIER[raw.dtype]).reshape(raw.shape))


def _scalars(meaning: Meaning, scalars: Json, notes: list[str]) -> Json:
    assert meaning.ours is not None
    wanted = {tensor.name for tensor in meaning.ours.definition.inputs if tensor.is_scalar}
    kept: Json = {name: value for name, value in scalars.items() if name in wanted and value is not None}
    notes += meaning.format.scalars(meaning, kept)
    return {"scalars": kept} if kept else {}


def _cast(name: str, array: Array, dtype: str, notes: list[str]) -> Array:
    if array.dtype == dtype:
        return array
    values: NDArray[np.generic] = array.values()
    floats = dtype in FLOATS
    cast = Array(dtype, encode(values.astype(np.float64), dtype) if floats else values.astype(CARRIER[dtype]))
    exact = np.array_equal(cast.values().astype(np.float64), values.astype(np.float64))
    notes.append(f"{name} from {array.dtype} to {dtype}" + ("" if exact else ": rounded"))
    return cast

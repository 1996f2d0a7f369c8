"""Writes the tensors of a workload into a safetensors file one at a time, to save memory."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gdnspec.build.reference import judged
from gdnspec.catalog.definitions import Found, preset_of
from gdnspec.inputs import validity
from gdnspec.inputs.array import Array
from gdnspec.inputs.materialise import InvalidWorkload, materialise, painted, refuse_drawn
from gdnspec.inputs.memory import available
from gdnspec.inputs.tensor_file import header
from gdnspec.model.elements import Tensor
from gdnspec.model.errors import RegimeError
from gdnspec.model.workload import Workload

DRAWING = 1.2  # times a tensor's bytes: it is drawn in blocks, which are small


def write(found: Found, workload: Workload, file: Path) -> tuple[int, str]:
    """Writes the file and returns its size in bytes and its sha256, the same as from `materialise`. The file is
    complete or does not exist. Raises `InvalidWorkload`, `OSError`, and `MemoryError` if the largest tensor does not
    fit."""
    refuse_drawn(workload)
    scope = workload.scope(found.definition, preset_of(found, workload))
    largest = max(found.definition.nbytes(tensor, scope) for tensor in found.definition.inputs)
    have = available()
    if have is not None and DRAWING * largest > have:
        need = DRAWING * largest / 2**30
        raise MemoryError(f"its largest tensor needs about {need:.1f} GiB, but only {have / 2**30:.1f} GiB are free")
    partial = file.with_name(f".{file.name}.partial")
    try:
        size, sha256 = _written(found, workload, partial)
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
    return size, sha256


def _written(found: Found, workload: Workload, file: Path) -> tuple[int, str]:
    definition = found.definition
    scope = workload.scope(definition, preset_of(found, workload))
    tensors = [t for t in definition.inputs if not t.is_scalar and t.name not in workload.omit]
    shapes = {t.name: definition.shape(t, scope) for t in tensors}
    head, starts = header({t.name: (t.dtype, shapes[t.name]) for t in tensors})
    digest = hashlib.sha256()
    small: dict[str, Array] = {}  # the tensors that the family checks together
    bounding = judged(found.family).bounding
    with file.open("wb") as out:
        out.write(head)
        for tensor, array in _arrays(found, workload, tensors):
            digest.update(f"{tensor.name} {array.dtype} {list(array.shape)}\n".encode())
            data = np.ascontiguousarray(array.data).reshape(-1).view(np.uint8).data
            digest.update(data)
            out.seek(len(head) + starts[tensor.name])
            out.write(data)
            for problem in validity.values(found, tensor, array, workload):
                raise InvalidWorkload(problem)
            if tensor.name in bounding or tensor.parts:
                small[tensor.name] = array
        size = out.seek(0, 2)
    for problem in validity.problems(found, small, workload, scope):
        raise InvalidWorkload(problem)
    if workload.sha256 is not None and workload.sha256 != digest.hexdigest():
        raise InvalidWorkload(f"the inputs have sha256 {digest.hexdigest()[:12]}.., but the workload has another")
    return size, digest.hexdigest()


def _arrays(found: Found, workload: Workload, tensors: list[Tensor]) -> Iterator[tuple[Tensor, Array]]:
    if workload.tensors is not None:
        read = materialise(found, workload).tensors
        yield from ((tensor, read[tensor.name]) for tensor in tensors)
        return
    try:
        scope = workload.scope(found.definition, preset_of(found, workload))
        yield from painted(found, workload, scope)
    except RegimeError as error:
        raise InvalidWorkload(str(error)) from None

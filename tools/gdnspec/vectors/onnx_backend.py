"""Write workloads as backend tests of ONNX: DEFINITION/test_WORKLOAD/model.onnx, with inputs and expected outputs.

`onnx.backend.test.loader.load_model_tests(DIR, DEFINITION)` loads them. A model is one node in float32.
"""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gdnspec.build.reference import onnx as described
from gdnspec.build.reference import running
from gdnspec.catalog.definitions import Found
from gdnspec.inputs.contract import NotExpressed, Onnx, OnnxNode
from gdnspec.inputs.materialise import Inputs
from gdnspec.model.errors import Problem, SpecError
from gdnspec.model.workload import Workload
from gdnspec.numerics.arguments import arguments
from gdnspec.vectors.export import inputs_of, staged

# The runner compares elements: |got - expected| <= atol + rtol |expected|. For other orders of summation, atol is ROOM
# times the largest error of the same sums in float32; it is LEAST of the largest output at least.
RELATIVE, ROOM, LEAST = 1e-4, 16.0, 1e-6


def export(found: Found, lines: list[Workload], out: Path, force: bool, left_out: Callable[[str], None]) -> int:
    """Writes the folder `out`/DEFINITION, and returns the number of tests. `left_out` hears of workloads that ONNX
    cannot express. Raises `SpecError` if that is all of them, or the definition."""
    onnx = described(found.family)
    words = onnx.words(found.definition)
    if not words.operator:
        raise SpecError(f"{found.definition.name}: ONNX cannot express it: {words.lacking}")
    folder = out / found.definition.name
    _require_replaceable(folder, force)
    out.mkdir(parents=True, exist_ok=True)
    written = 0
    with staged(folder) as stage:
        for line in lines:
            try:
                nodes = _nodes(found, onnx, inputs_of(found, line))
            except NotExpressed as error:
                left_out(f"{line.name}: left out, {error}")
                continue
            if not nodes:
                left_out(f"{line.name}: left out, it has no token")
                continue
            _write(stage / f"test_{line.name}", nodes, onnx.opset)
            written += 1
        if not written:
            raise SpecError(f"{found.definition.name}: ONNX cannot express any of the chosen workloads")
        if folder.exists():
            shutil.rmtree(folder)
        stage.rename(folder)
    return written


def _require_replaceable(folder: Path, force: bool) -> None:
    if not folder.exists():
        return
    if not force:
        raise SpecError([Problem(folder, "exists already", hint="--force replaces an earlier export")])
    if not folder.is_dir() or any(not (test / "model.onnx").is_file() for test in folder.iterdir()):
        raise SpecError([Problem(folder, "is not an earlier export, so --force does not replace it")])


def _nodes(found: Found, onnx: Onnx, inputs: Inputs) -> list[OnnxNode]:
    given = arguments(found, inputs, "cpu")
    refused = None
    with running(found.family, f"writing {found.definition.name} as ONNX"):
        try:
            return list(onnx.nodes(found.definition, given))
        except NotExpressed as error:
            refused = error
    raise refused


def _write(folder: Path, nodes: Sequence[OnnxNode], opset: int) -> None:
    folder.mkdir()
    wanted, allowed = [], 0.0
    for node in nodes:
        exact = node.computed(node.attributes, _in(node, torch.float64))
        single = node.computed(node.attributes, _in(node, torch.float32))
        wanted.append([x.float() for x in exact])
        errors = [float((a - b).abs().max()) for a, b in zip(exact, single, strict=True)]
        largest = max(float(x.abs().max()) for x in exact)
        allowed = max(allowed, ROOM * max(errors), LEAST * largest)
    (folder / "model.onnx").write_bytes(_model(folder.name, nodes, wanted, opset).SerializeToString())
    (folder / "data.json").write_text(json.dumps({"rtol": RELATIVE, "atol": allowed}) + "\n", encoding="utf-8")
    for number, (node, outputs) in enumerate(zip(nodes, wanted, strict=True)):
        place = folder / f"test_data_set_{number}"
        place.mkdir()
        for kind, tensors in (("input", _given(node)), ("output", dict(zip(node.outputs, outputs, strict=True)))):
            for i, (name, x) in enumerate(tensors.items()):
                (place / f"{kind}_{i}.pb").write_bytes(_proto(name, x))


def _model(name: str, nodes: Sequence[OnnxNode], wanted: Sequence[Sequence[Tensor]], opset: int) -> Any:
    """The model of all nodes: a size that is not the same in all has a name."""
    from onnx import checker, helper

    first = nodes[0]
    given = [_given(node) for node in nodes]
    made = [dict(zip(node.outputs, outputs, strict=True)) for node, outputs in zip(nodes, wanted, strict=True)]
    inputs, outputs = ([_value(key, [one[key] for one in side]) for key in side[0]] for side in (given, made))
    names = [key if x is not None else "" for key, x in first.inputs.items()]
    node = helper.make_node(first.operator, names, list(first.outputs), **first.attributes)
    opsets = [helper.make_opsetid("", opset)]
    graph = helper.make_graph([node], name, inputs, outputs)
    model = helper.make_model(
        graph, producer_name="gdnspec", opset_imports=opsets, ir_version=helper.find_min_ir_version_for(opsets)
    )
    checker.check_model(model, full_check=True)
    return model


def _value(name: str, tensors: Sequence[Tensor]) -> Any:
    from onnx import TensorProto, helper

    sizes = [
        each[0] if len(set(each)) == 1 else f"{name}_size_{i}"
        for i, each in enumerate(zip(*(x.shape for x in tensors), strict=True))
    ]
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes)


def _proto(name: str, x: Tensor) -> bytes:
    from onnx import numpy_helper

    return bytes(numpy_helper.from_array(x.contiguous().numpy(), name).SerializeToString())


def _given(node: OnnxNode) -> dict[str, Tensor]:
    return {name: x for name, x in node.inputs.items() if x is not None}


def _in(node: OnnxNode, dtype: torch.dtype) -> dict[str, Tensor | None]:
    return {name: None if x is None else x.to(dtype) for name, x in node.inputs.items()}

"""Workloads as backend tests of ONNX: its own runner loads them, right operators pass, and wrong ones do not."""

import json
import unittest
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Run
from gdnspec.build.reference import onnx as described
from gdnspec.catalog.definitions import definition, definitions
from gdnspec.catalog.families import family
from gdnspec.catalog.solutions import load_solution
from gdnspec.catalog.workloads import by_name

pytest.importorskip("onnx")
from gdnspec.vectors.onnx_backend import export

pytestmark = pytest.mark.xdist_group("onnx_backend")  # one set of files
EXPORTED = {
    "gdn_prefill_k_last": ("ragged", "resets", "empty_sequences"), "gdn_decode_pool_k_last": ("skips",),
    "gdn_conv1d_prefill": ("ragged",),
}  # fmt: skip


def test_each_definition_has_an_operator_or_a_reason() -> None:
    there = described(family("gdn"))
    words = {name: there.words(found.definition) for name, found in definitions().items() if found.family.name == "gdn"}
    assert len(words) > 30
    for name, said in words.items():
        assert bool(said.operator) != bool(said.lacking), name
        assert bool(said.operator) == bool(said.around), name
    peer = load_solution(ROOT / "peers" / "onnxruntime").manifest
    assert {name for name, said in words.items() if said.operator} == peer.entries.keys()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("onnx")
    for name, chosen in EXPORTED.items():
        found = definition(name)
        lines = [by_name(found)[one] for one in chosen]
        assert export(found, lines, out, False, pytest.fail) == len(chosen)
    return out


def ran(root: Path, backend: Any) -> unittest.TestResult:
    """The result of ONNX's runner on all tests, on a CPU."""
    from onnx.backend.test.loader import load_model_tests
    from onnx.backend.test.runner import Runner

    class Ours(Runner):
        def __init__(self) -> None:  # the runner's own loads the tests of ONNX itself
            self.backend, self._parent_module, self._test_kwargs = backend, None, {}
            self._include_patterns, self._exclude_patterns, self._xfail_patterns = set(), set(), set()
            self._test_items = defaultdict(dict)
            for kind in EXPORTED:
                for case in load_model_tests(str(root), kind):
                    case.name = f"test_{kind}_{case.name}"
                    self._add_model_test(case, kind)

    result = unittest.TestResult()
    Ours().include("_cpu$").test_suite.run(result)
    assert result.testsRun == 2 * sum(map(len, EXPORTED.values())), "each for a CPU and for CUDA"
    assert len(result.skipped) == result.testsRun // 2
    return result


def evaluator(changed: dict[str, str]) -> Any:
    """The reference of the onnx package as a backend. `changed`: inputs of LinearAttention that it takes for others."""
    from onnx.backend.base import Backend, BackendRep
    from onnx.reference import ReferenceEvaluator

    class Prepared(BackendRep):
        def __init__(self, model: Any) -> None:
            self.evaluator = ReferenceEvaluator(model)

        def run(self, inputs: Any, **kwargs: Any) -> Any:
            feeds = dict(zip(self.evaluator.input_names, inputs, strict=True))
            for name, other in changed.items():
                if name in feeds:
                    feeds[name] = feeds[other]
            return tuple(self.evaluator.run(None, feeds))

    class Reference(Backend):
        @classmethod
        def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> Any:
            return Prepared(model)

        @classmethod
        def supports_device(cls, device: str) -> bool:
            return device == "CPU"

    return Reference


def test_the_reference_of_onnx_passes(root: Path) -> None:
    result = ran(root, evaluator({}))
    assert result.wasSuccessful(), result.failures + result.errors


def test_onnxruntime_passes(root: Path) -> None:
    pytest.importorskip("onnxruntime")
    import onnxruntime.backend

    result = ran(root, onnxruntime.backend)
    assert result.wasSuccessful(), result.failures + result.errors


def test_a_wrong_operator_fails(root: Path) -> None:
    """Beta taken for the gate: every test of the rule fails, those of the convolution do not."""
    result = ran(root, evaluator({"decay": "beta"}))
    assert not result.errors
    failed = {str(test) for test, _ in result.failures}
    rules = [name for name in EXPORTED if "conv" not in name]
    assert len(failed) == sum(len(EXPORTED[name]) for name in rules)
    assert all(any(name in test for name in rules) for test in failed)


def test_a_sequence_is_a_data_set_and_an_empty_one_is_none(root: Path) -> None:
    lines = by_name(definition("gdn_prefill_k_last"))
    for name in ("ragged", "empty_sequences"):
        folder = root / "gdn_prefill_k_last" / f"test_{name}"
        tokens = [length for length in lines[name].sequence_lengths or () if length]
        assert len(list(folder.glob("test_data_set_*"))) == len(tokens)
        tolerance = json.loads((folder / "data.json").read_text())
        assert 0 < tolerance["atol"] < 1e-3
    assert 0 in (lines["empty_sequences"].sequence_lengths or ())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("gdn_verify_k_last", "--out", "x"), "ONNX cannot express it: the operator returns the last state alone"),
        (("gdn_decode_k_last", "--workload", "scale_zero", "--out", "x"), "cannot express any of the chosen workloads"),
        (("gdn_decode_k_last", "--out", "."), ""),
        (("toy_running_sum", "--out", "x"), "the family toy does not say how ONNX describes it"),
    ],
)
def test_what_cannot_be_exported_is_told(gdnspec: Run, tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    if not said:
        (tmp_path / "gdn_decode_k_last").mkdir()
        (tmp_path / "gdn_decode_k_last" / "mine").touch()
        said = "is not an earlier export"
        arguments = (*arguments, "--force")
    toy = ("--definitions-dir", ROOT / "tests/support/toy/definitions")
    done = gdnspec("vectors", "export", *arguments, "--format", "onnx-backend", *toy, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert not list(tmp_path.rglob("model.onnx"))


def test_an_export_is_replaced_on_request_only(gdnspec: Run, root: Path) -> None:
    again = ("vectors", "export", "gdn_conv1d_prefill", "--workload", "ragged", "--out", root)
    done = gdnspec(*again, "--format", "onnx-backend")
    assert done.returncode == 2
    assert "exists already" in done.stderr
    done = gdnspec(*again, "--format", "onnx-backend", "--force")
    assert done.returncode == 0, done.stderr
    assert f"1 backend tests of gdn_conv1d_prefill in {root / 'gdn_conv1d_prefill'}" in done.stderr
    assert "no format 'onnx'" in gdnspec(*again, "--format", "onnx").stderr

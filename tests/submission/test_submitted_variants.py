"""A bundle carries every variant of a solution; its evidence names what was measured; all of them are judged."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Run
from gdnspec.catalog.solutions import Solution, load_solution
from gdnspec.catalog.traces import load_traces, trace_files
from gdnspec.model.errors import SpecError
from gdnspec.submission.admission import admit
from gdnspec.submission.bundle import packed, read
from helpers_bundles import DECODE, all_passed, bundle_of, claimed, resealed
from helpers_traces import make_trace

Make = Callable[..., Path]
INPUTS = "q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm"
CODE = f"""
def run({INPUTS}, factor=1.0):
    output, new_state = decode_k_last({INPUTS})
    return output * factor, new_state
"""
FEW = ["batch_size == 1 and num_v_heads <= 4"]
ENTRIES = {DECODE: {"entry": "kernel.py::run", "call": "return", "prepare": None, "supports": FEW}}
SAME = {"same": {"description": "the default, said", "arguments": {"factor": 1.0}}}
DOUBLED = {"doubled": {"description": "twice as much", "arguments": {"factor": 2.0}}}


@pytest.fixture
def into(tmp_path: Path) -> Path:
    folder = tmp_path / "into"
    folder.mkdir()
    return folder


def every_verdict(solution: Solution) -> list[Any]:
    return [verdict for one in (solution, *solution.variants) for verdict in all_passed(one)]


@pytest.mark.slow
def test_a_solution_and_its_variants_are_submitted_and_taken_in_together(
    gdnspec: Run, make_solution: Make, tmp_path: Path, into: Path
) -> None:
    folder = make_solution(CODE, entries=ENTRIES, variants=SAME)
    where, names = ("--solutions-dir", folder.parent, "--device", "cpu"), ("under_test", "under_test:same")
    done = gdnspec("submit", "under_test", *where, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    bundle = read(tmp_path / "under_test.bundle.tar")
    assert bundle.manifest.evidence.solution == "under_test"
    assert {verdict.solution for verdict in bundle.verdicts} == set(names)
    done = gdnspec("intake", tmp_path / "under_test.bundle.tar", "--into", into, "--device", "cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    solution = load_solution(into / "under_test")
    assert (solution.name, *(one.name for one in solution.variants)) == names
    done = gdnspec("submit", "under_test:same", *where, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    bundle = read(tmp_path / "under_test-same.bundle.tar")
    assert (bundle.manifest.name, bundle.manifest.evidence.solution) == names
    assert {verdict.solution for verdict in bundle.verdicts} == {"under_test:same"}


@pytest.mark.parametrize("asked", [pytest.param("under_test", marks=pytest.mark.thorough), "under_test:same"])
def test_a_wrong_variant_is_not_taken_in_whatever_the_evidence_is_about(
    gdnspec: Run, make_solution: Make, tmp_path: Path, into: Path, asked: str
) -> None:
    solution = load_solution(make_solution(CODE, entries=ENTRIES, variants=SAME | DOUBLED))
    one = solution.named(asked)
    assert one is not None
    file = tmp_path / "a.tar"
    file.write_bytes(packed(one, claimed(one, verdicts=every_verdict(one))))
    done = gdnspec("intake", file, "--into", into, "--device", "cpu")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "INCORRECT_NUMERICAL on gdn_decode_k_last/" in done.stderr
    assert "(under_test:doubled)" in done.stderr
    assert not list(into.iterdir())


def test_evidence_without_verdicts_on_a_variant_is_refused(
    gdnspec: Run, make_solution: Make, tmp_path: Path, into: Path
) -> None:
    folder = make_solution(CODE, entries=ENTRIES, variants=SAME)
    done = gdnspec("intake", bundle_of(folder, tmp_path / "a.tar"), "--into", into, "--device", "cpu")
    assert done.returncode == 1
    assert "its own evidence: nothing ran on gdn_decode_k_last (under_test:same)" in done.stderr


def test_evidence_for_a_variant_that_the_bundle_lacks_is_refused(make_solution: Make, tmp_path: Path) -> None:
    bundle = bundle_of(make_solution(CODE, variants=SAME), tmp_path / "a.tar")
    for name in ("under_test:gone", "other"):
        forged = resealed(bundle, lambda manifest, name=name: manifest["evidence"].update(solution=name))
        with pytest.raises(SpecError, match=f"/evidence/solution: evidence for '{name}'"):
            read(forged)
    # The solution's hash is not the variant's.
    forged = resealed(bundle, lambda manifest: manifest["evidence"].update(solution="under_test:same"))
    with pytest.raises(SpecError, match="/evidence/source_hash: its evidence is for other sources"):
        read(forged)


def test_traces_of_a_variant_are_admitted_to_its_own_folder(make_solution: Make, tmp_path: Path, into: Path) -> None:
    bundle = read(bundle_of(make_solution(CODE, variants=SAME), tmp_path / "a.tar"))
    solution = load_solution(tmp_path / "solutions" / "under_test")
    both = [make_trace(solution=one.name, source_hash=one.source_hash) for one in (solution, *solution.variants)]
    admitted = load_solution(admit(bundle, both, into))
    for one, trace in zip((admitted, *admitted.variants), both, strict=True):
        (file,) = trace_files(one)
        assert load_traces(file, pytest.fail) == [trace]

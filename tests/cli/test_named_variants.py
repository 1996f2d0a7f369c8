"""NAME:VARIANT wherever a command takes a solution."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Run
from gdnspec.catalog.solutions import load_variant
from gdnspec.catalog.traces import save
from helpers_traces import DECODE, make_trace

INPUTS = "q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm"
CODE = f"""
def run({INPUTS}, factor=1.0):
    output, new_state = decode_k_last({INPUTS})
    return output * factor, new_state
"""
VARIANTS = {"doubled": {"description": "twice as much", "arguments": {"factor": 2.0}}}
ONE = ("--workload", "batch_8", "--device", "cpu")


@pytest.fixture
def folder(make_solution: Callable[..., Path]) -> Path:
    return make_solution(CODE, variants=VARIANTS)


def test_list_and_show_name_variants(gdnspec: Run, folder: Path) -> None:
    where = ("--solutions-dir", folder.parent)
    rows = json.loads(gdnspec("list", "solutions", "--json", *where).stdout)
    assert {"under_test", "under_test:doubled"} <= {row["solution"] for row in rows}
    assert "variant     under_test:doubled: twice as much" in gdnspec("show", "under_test", *where).stdout
    shown = gdnspec("show", "under_test:doubled", *where).stdout
    assert shown.startswith("under_test:doubled\n")
    assert "arguments   factor=2.0" in shown
    assert "hopper_prefill:strict" in gdnspec("list", "solutions").stdout


def test_check_runs_the_variant_that_was_named(gdnspec: Run, folder: Path, tmp_path: Path) -> None:
    """The variant is wrong and the solution is right: neither stands for the other."""
    where, file = ("--solutions-dir", folder.parent), tmp_path / "results.jsonl"
    names = ("under_test", "under_test:doubled")
    wanted = [word for name in names for word in ("--solution", name)]
    done = gdnspec("check", DECODE, *ONE, *wanted, *where, "--json", file)
    assert done.returncode == 1, done.stderr
    results = [json.loads(line) for line in file.read_text().splitlines()]
    assert {row["solution"]: row["status"] for row in results} == dict(zip(names, ("PASSED", "INCORRECT_NUMERICAL")))  # noqa: B905
    (wrong,) = (row for row in results if row["solution"] == "under_test:doubled")
    assert "--solution under_test:doubled" in wrong["repeat"]
    assert gdnspec("check", DECODE, *ONE, "--solution", "under_test", *where).returncode == 0


COMMANDS = (
    ("check", DECODE, "--solution"),
    ("bench", DECODE, "--device", "cpu", "--solution"),
    ("submit",),
    ("show",),
    ("traces", "carry"),
    ("compare", "torch_recurrent"),
)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_variant_that_no_manifest_declares_is_an_invalid_request(
    gdnspec: Run, folder: Path, command: tuple[str, ...]
) -> None:
    done = gdnspec(*command, "under_test:doubeld", "--solutions-dir", folder.parent)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "solution.json: /variants: no variant 'doubeld' (did you mean 'doubled'?)" in done.stderr


@pytest.mark.slow
def test_traces_of_a_variant_are_validated_compared_and_reported(gdnspec: Run, folder: Path) -> None:
    where, one = ("--solutions-dir", folder.parent), load_variant(folder, "doubled")
    file = save(one, make_trace(solution=one.name, source_hash=one.source_hash))
    done = gdnspec("validate", folder)
    assert (done.returncode, "2 files valid" in done.stdout) == (0, True), done.stderr
    for side in ("under_test:doubled", str(file)):
        done = gdnspec("compare", "under_test:doubled", side, *where)
        assert done.returncode == 0, done.stdout + done.stderr
    page = folder.parent / "page.html"
    assert gdnspec("report", DECODE, "-o", page, *where).returncode == 0
    assert "under_test:doubled" in page.read_text()


def test_an_export_says_that_the_other_format_has_no_variants(gdnspec: Run, folder: Path, tmp_path: Path) -> None:
    done = gdnspec("export", "flashinfer-bench", "under_test:doubled", "--preset", "qwen3-next-80b-a3b-tp1",
                   "-o", tmp_path / "out", "--solutions-dir", folder.parent)  # fmt: skip
    assert done.returncode == 2
    assert "has no variants; export under_test" in done.stderr

"""A family from outside, from its first workload to an accepted submission: no tool knows anything of it."""

import json
import re
import runpy
import shlex
import shutil
from pathlib import Path

import pytest
from conftest import ROOT, Run
from helpers_bundles import resealed
from helpers_toy import BASE, DEFINITIONS, NAMES, SOLUTIONS, STRETCH, SUM, copied
from safetensors.torch import load_file, save_file

PAGE = ROOT / "docs" / "how-to" / "add-a-family.md"
OUTSIDE = ("--definitions-dir", DEFINITIONS)
THERE = (*OUTSIDE, "--device", "cpu")
FROM = ("--solutions-dir", SOLUTIONS)


def results(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize("language", ["python", "triton"])
def test_a_scaffold_is_valid_and_runs_until_it_is_written(gdnspec: Run, tmp_path: Path, language: str) -> None:
    serves = [word for name in NAMES for word in ("--definition", name)]
    done = gdnspec("new", "mine", *serves, "--language", language, "--solutions-dir", tmp_path, *OUTSIDE)
    assert done.returncode == 0, done.stderr
    check = done.stdout.split("then: gdnspec ")[1].split()
    assert check[-2:] == list(map(str, OUTSIDE))
    assert gdnspec("validate", tmp_path / "mine", *OUTSIDE).returncode == 0
    done = gdnspec(*check, "--workload", "smoke_1", "--json", tmp_path / "out.jsonl")
    assert done.returncode == 1, done.stderr
    status = {"python": "RUNTIME_ERROR", "triton": "NON_FINITE"}[language]
    assert [result["status"] for result in results(tmp_path / "out.jsonl")] == [status] * 2
    repeat = next(line.split("repeat: gdnspec ")[1] for line in done.stderr.splitlines() if "repeat: " in line)
    assert gdnspec(*repeat.split()).returncode == 1


@pytest.mark.parametrize("name", [SUM, "toy"])
def test_commands_that_are_shown_find_the_family(gdnspec: Run, name: str) -> None:
    done = gdnspec("show", name, *OUTSIDE)
    shown = [line.split("gdnspec ")[1].split() for line in done.stdout.splitlines() if ": gdnspec list" in line]
    assert shown
    for words in shown:
        assert gdnspec(*words).returncode == 0, words


def test_it_is_judged_in_every_way(gdnspec: Run, tmp_path: Path) -> None:
    """Both solutions on every suite, one of them called again and by relations as well; then the page about it."""
    file = tmp_path / "out.jsonl"
    check = ("check", *NAMES, *THERE, *FROM, "--suite", "all", "--json", file, "--solution")
    for each in (("toy_python", "--repeat", "2", "--symmetries", "--errors"), ("toy_triton",)):
        done = gdnspec(*check, *each)
        assert done.returncode == 0, done.stderr
    found = results(file)
    assert {result["status"] for result in found} == {"PASSED"}
    assert {(r["solution"], r["definition"]) for r in found} == {
        (solution, name) for solution in ("toy_python", "toy_triton") for name in NAMES
    }
    assert {result["suite"] for result in found} == {"smoke", "conformance", "fresh"}
    held = {(r["definition"], name) for r in found for name, status in r["symmetries"].items() if status == "PASSED"}
    assert held == {
        (SUM, "row_sign"), (SUM, "row_order"), (SUM, "row_size"), (SUM, "one_sequence_at_a_time"),
        (STRETCH, "column_sign"), (STRETCH, "column_order"), (STRETCH, "permute_sequences"),
        (STRETCH, "one_sequence_at_a_time"), (STRETCH, "split_and_carry"),
    }  # fmt: skip
    page = tmp_path / "page.html"
    done = gdnspec("report", *NAMES, *OUTSIDE, *FROM, "--verdicts", file, "-o", page)
    assert done.returncode == 0, done.stderr
    assert f"{len(found)} verdicts" in done.stdout
    assert "along each row by itself" in page.read_text()


def test_its_budgets_follow_from_its_emulators(gdnspec: Run) -> None:
    done = gdnspec("workloads", "freeze", *NAMES, *THERE, "--check")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "9 workloads recomputed, 0 figures moved\n"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param(SUM, ("--batch", "uniform:0:5"), marks=pytest.mark.thorough),
        (STRETCH, ("--lengths", "uniform:0:9", "--batch", "3")),
    ],
)
def test_lines_are_generated_frozen_described_and_passed(
    gdnspec: Run, tmp_path: Path, name: str, options: tuple[str, ...]
) -> None:
    file = tmp_path / f"{name}.jsonl"
    generate = ("workloads", "generate", name, "--preset", "toy-32", "--count", "2", *options, *OUTSIDE, "-o")
    done = gdnspec(*generate, file, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert [line["regime"] for line in results(file)] == ["even", "even"]  # the first of the family
    (tmp_path / "bare").mkdir()
    bare = tmp_path / "bare" / f"{name}.jsonl"
    assert gdnspec(*generate, bare, "--no-freeze").returncode == 0
    assert [line["sha256"] for line in results(bare)] == [line["sha256"] for line in results(file)]
    done = gdnspec("workloads", "freeze", name, "--workloads", bare, *THERE)
    assert done.returncode == 0, done.stderr
    assert bare.read_text() == file.read_text()
    done = gdnspec("workloads", "stats", file, *OUTSIDE)
    assert done.returncode == 0, done.stderr
    assert f"{name}, {file}: 2 calls, 2 workloads" in done.stdout
    done = gdnspec("check", name, "--workloads", file, "--solution", "toy_python", *THERE, *FROM)
    assert done.returncode == 0, done.stderr


def test_vectors_go_out_and_come_back(gdnspec: Run, tmp_path: Path) -> None:
    done = gdnspec("vectors", "export", STRETCH, "--suite", "smoke", *OUTSIDE, "--out", tmp_path / "vectors")
    assert done.returncode == 0, done.stderr
    assert any("as unlike attention" in page.read_text() for page in (tmp_path / "vectors").glob("*.md"))
    right = runpy.run_path(str(BASE / "kernel.py"))["unit_stretch"]
    for file in sorted((tmp_path / "vectors" / "inputs").glob("*.safetensors")):
        given = load_file(file)
        (tmp_path / "out").mkdir(exist_ok=True)
        (y,) = right(given["x"], given["starts"], 0.0 if file.stem == "smoke_1" else None)
        save_file({"y": y.contiguous()}, tmp_path / "out" / file.name)
    judge = ("vectors", "judge", tmp_path / "vectors", tmp_path / "out", *OUTSIDE)
    done = gdnspec(*judge)
    assert done.returncode == 0, done.stderr
    assert "2 of 2" in done.stdout
    save_file({"y": y * 1.01}, tmp_path / "out" / file.name)
    done = gdnspec(*judge)
    assert done.returncode == 1
    assert f"INCORRECT_NUMERICAL  out on {STRETCH}/{file.stem}" in done.stderr
    assert f"repeat: gdnspec {' '.join(map(str, judge))}\n" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("left_out", [{"check", "selftest"}, pytest.param({"check"}, marks=pytest.mark.thorough)])
def test_the_page_about_it_shows_what_is_said(gdnspec: Run, tmp_path: Path, left_out: set[str]) -> None:
    """Every command of the page but those that take longest. Its selftest rejects its three faults."""
    copied(tmp_path / "ops")
    blocks = re.findall(r"^```console\n\$ (.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").replace("$ ", "").splitlines()]
    ran = set()
    for command, after in zip(lines, [*lines[1:], ""], strict=True):
        words = shlex.split(command)
        if words[:1] != ["gdnspec"] or words[1] in left_out:
            continue
        done = gdnspec(*words[1:], *(("--jobs", "1") if words[1] == "selftest" else ()), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        if not after.startswith("gdnspec "):
            assert after.split("; seed")[0] in done.stdout
        ran.add(words[1])
    assert ran == {"validate", "workloads", "new", "selftest"} - left_out


def test_a_bundle_is_taken_in_by_the_family_of_who_takes_it(gdnspec: Run, tmp_path: Path) -> None:
    """The bundle brings the family's files among its sources: they are never looked at."""
    mine, into, bundle = tmp_path / "mine", tmp_path / "into", tmp_path / "toy.tar"
    folder = shutil.copytree(SOLUTIONS / "toy_python", mine / "toy_python")
    into.mkdir()
    brought = {
        "definitions/toy/family.json": (DEFINITIONS / "toy" / "family.json").read_text(),
        "reference/toy/family.py": 'raise ValueError("it was run")\n',
    }
    for name, text in brought.items():
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text)
    manifest = json.loads((folder / "solution.json").read_text())
    manifest["sources"] += list(brought)
    (folder / "solution.json").write_text(json.dumps(manifest))
    done = gdnspec("submit", "toy_python", "--solutions-dir", mine, *THERE, "-o", bundle)
    assert done.returncode == 0, done.stderr
    assert f"gdnspec intake {bundle} --definitions-dir {DEFINITIONS}" in done.stdout

    refused = gdnspec("intake", bundle, "--into", into, "--device", "cpu")
    assert refused.returncode == 2
    assert f"/evidence/definitions/{SUM}: no definition '{SUM}'" in refused.stderr
    assert "a bundle cannot bring a family: --definitions-dir names your own copy" in refused.stderr
    assert list(into.iterdir()) == []

    beside = resealed(
        shutil.copyfile(bundle, tmp_path / "beside.tar"), lambda _: None, {"definitions/toy/family.json": b"{}"}
    )
    refused = gdnspec("intake", beside, "--into", into, *THERE)
    assert refused.returncode == 2
    assert "/files: 'definitions/toy/family.json' does not belong in a bundle" in refused.stderr
    assert list(into.iterdir()) == []

    taken = gdnspec("intake", bundle, "--into", into, *THERE)
    assert taken.returncode == 0, taken.stderr
    assert [path.name for path in into.iterdir()] == ["toy_python"]
    assert SUM not in gdnspec("list", "--help").stdout + gdnspec("list").stdout

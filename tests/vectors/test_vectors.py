"""Test vectors: files that need no Python, a program that needs none, and a judge that takes nothing on trust."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forked_command
import pytest
import torch
from conftest import ROOT, Run
from gdnspec.catalog.definitions import definition
from gdnspec.catalog.workloads import workloads
from gdnspec.cli.main import main
from gdnspec.inputs.materialise import materialise
from gdnspec.vectors.conventions import pages
from helpers_unit import arguments, run_reference
from safetensors.torch import load_file, save_file

NAME = "gdn_decode_k_last"
SMALL = ("one_row", "scale_zero")
Manifest = dict[str, Any]


def options(*names: str) -> list[str]:
    return [word for name in names for word in ("--workload", name)]


def export(gdnspec: Run, out: Path, *more: str, name: str = NAME) -> Manifest:
    done = gdnspec("vectors", "export", name, "--out", out, *more)
    assert done.returncode == 0, done.stderr
    return json.loads((out / "manifest.json").read_text())  # type: ignore[no-any-return]


def right(name: str, workload: str) -> dict[str, torch.Tensor]:
    """The outputs of one shipped workload: the reference in float64, rounded once."""
    found = definition(name)
    line = next(line for line in workloads(found) if line.name == workload)
    values = run_reference(found, arguments(found, materialise(found, line), torch.float64))
    return {o.name: values[o.name].to(getattr(torch, o.dtype)).contiguous() for o in found.definition.outputs}


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """As `gdnspec`, but in this process, which has torch already: half of the time here would go into imports."""

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        capsys.readouterr()
        with monkeypatch.context() as patch, pytest.raises(SystemExit) as end:
            patch.setattr("sys.argv", ["gdnspec", *map(str, arguments)])
            patch.setattr("signal.signal", lambda *_: None)
            main()
        said = capsys.readouterr()
        assert isinstance(end.value.code, int)
        return subprocess.CompletedProcess(arguments, end.value.code, said.out, said.err)

    return run


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """vectors/ of two small workloads and outputs/ that pass; copied before they are spoilt."""
    folder = tmp_path_factory.mktemp("small")
    words = ["vectors", "export", NAME, "--out", str(folder / "vectors"), *options(*SMALL)]
    assert forked_command.run(words, dict(os.environ)).returncode == 0
    (folder / "outputs").mkdir()
    for workload in SMALL:
        # By the library of other people, metadata and all: what they write must be taken.
        save_file(right(NAME, workload), folder / "outputs" / f"{workload}.safetensors", {"made": "by a test"})
    return folder


@pytest.fixture
def copy(small: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small, tmp_path / "copy"))


# --- what is exported --------------------------------------------------------------------------------------------


def test_the_manifest_says_all_that_a_caller_needs(small: Path) -> None:
    manifest = json.loads((small / "vectors/manifest.json").read_text())
    assert manifest["schema_version"] == 1
    assert manifest["definition"] == json.loads((ROOT / f"definitions/gdn/{NAME}/definition.json").read_text())
    lines = {line["name"]: line for line in map(json.loads, (ROOT / f"definitions/gdn/{NAME}/workloads.jsonl").open())}
    assert {entry["workload"]["name"] for entry in manifest["workloads"]} == set(SMALL)
    for entry in manifest["workloads"]:
        line = lines[entry["workload"]["name"]]
        assert entry["workload"] == line
        assert {output["name"]: output["budget"] for output in entry["outputs"]} == line["budget"]
        tensors = load_file(small / "vectors" / entry["file"])
        described = [(t["name"], t["dtype"], t["shape"]) for t in entry["inputs"]]
        assert {name for name, _, _ in described} == tensors.keys()
        for name, dtype, shape in described:
            assert (str(tensors[name].dtype), list(tensors[name].shape)) == (f"torch.{dtype}", shape)
    scales = {
        entry["workload"]["name"]: next((s["value"], s["given"]) for s in entry["scalars"] if s["name"] == "scale")
        for entry in manifest["workloads"]
    }
    assert scales == {"one_row": (64**-0.5, False), "scale_zero": (0.0, True)}
    assert manifest["workloads"][0]["axes"]["num_sab_heads"] == 2
    assert "gdnspec vectors judge" in (small / "vectors/README.md").read_text()
    assert "u = beta * (v - S k)" in (small / "vectors/CONVENTIONS.md").read_text()


@pytest.mark.parametrize("name", [NAME, "gdn_prefill_k_first"])
def test_recorded_expected_values_stay_behind(inside: Run, tmp_path: Path, name: str) -> None:
    recorded = load_file(ROOT / f"definitions/gdn/{name}/tensors/qwen3_next.safetensors")
    assert any(tensor.startswith("expected.") for tensor in recorded)
    manifest = export(inside, tmp_path / "v", *options("qwen3_next_model"), name=name)
    tensors = load_file(tmp_path / "v" / manifest["workloads"][0]["file"])
    inputs = {tensor["name"] for tensor in manifest["definition"]["inputs"]}
    assert tensors.keys() <= inputs
    assert all(torch.equal(tensors[key], recorded[key]) for key in tensors)
    assert sorted(path.name for path in (tmp_path / "v").rglob("*") if path.is_file()) == [
        "CONVENTIONS.md",
        "CONVENTIONS_of_all.md",
        "README.md",
        "manifest.json",
        "qwen3_next_model.safetensors",
    ]


def test_a_family_that_refers_to_another_brings_its_conventions_along() -> None:
    texts = pages(ROOT / "definitions/kda")
    assert texts.keys() == {"CONVENTIONS.md", "CONVENTIONS_gdn.md", "CONVENTIONS_of_all.md"}
    assert "[gated delta net](CONVENTIONS_gdn.md)" in texts["CONVENTIONS.md"]
    assert set(re.findall(r"\]\((CONVENTIONS\w*\.md)", "".join(texts.values()))) <= texts.keys()


def test_exporting_twice_gives_the_same_bytes(inside: Run, tmp_path: Path) -> None:
    for name in ("a", "b"):
        export(inside, tmp_path / name, "--suite", "smoke", name="gdn_prefill_k_last")
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file())
    smoke = [line for line in workloads(definition("gdn_prefill_k_last")) if line.suite == "smoke"]
    assert len(files) == 4 + len(smoke)
    assert all((tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes() for file in files)


def test_no_elements_and_absent_inputs(inside: Run, tmp_path: Path) -> None:
    name, chosen = "gdn_prefill_k_first", ("all_empty", "empty_without_state", "only_required_ragged", "scale_zero")
    manifest = export(inside, tmp_path / "v", *options(*chosen), name=name)
    entries = {entry["workload"]["name"]: entry for entry in manifest["workloads"]}
    assert load_file(tmp_path / "v/inputs/all_empty.safetensors")["q"].shape == (0, 1, 64)
    assert entries["only_required_ragged"]["omitted"] == {"g": 0.0, "beta": 1.0, "initial_state": 0.0}
    assert entries["all_empty"]["outputs"][0]["shape"] == [0, 2, 64]
    (tmp_path / "out").mkdir()
    for workload in chosen:
        save_file(right(name, workload), tmp_path / "out" / f"{workload}.safetensors")
    done = inside("vectors", "judge", tmp_path / "v", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "4 of 4" in done.stdout


def test_an_export_is_whole_or_not_there_and_replaces_only_an_export(inside: Run, copy: Path) -> None:
    again = ("vectors", "export", NAME, *options("one_row"), "--out")
    refused = inside(*again, copy / "vectors")
    assert (refused.returncode, "exists already (--force" in refused.stderr) == (2, True)
    assert inside(*again, copy / "vectors", "--force").returncode == 0
    assert [file.name for file in (copy / "vectors/inputs").iterdir()] == ["one_row.safetensors"]

    (copy / "vectors/inputs/thesis.tex").write_text("years of work")
    refused = inside(*again, copy / "vectors", "--force")
    assert (refused.returncode, "holds files that no export wrote" in refused.stderr) == (2, True)
    refused = inside(*again, copy, "--force")
    assert (refused.returncode, "is not an earlier export" in refused.stderr) == (2, True)
    assert (copy / "vectors/inputs/thesis.tex").exists()

    refused = inside(*again, copy / "no/such/folder")
    assert (refused.returncode, "its folder does not exist" in refused.stderr) == (2, True)
    assert "did you mean 'one_row'?" in inside("vectors", "export", NAME, "--workload", "one_rwo", "--out", "x").stderr
    assert sorted(path.name for path in copy.iterdir()) == ["outputs", "vectors"]


# --- a program without Python ------------------------------------------------------------------------------------

GXX = shutil.which("g++")


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    folder = tmp_path_factory.mktemp("cpp")

    def compiled(*flags: str) -> Path:
        program = folder / ("decode" + "".join(flags))
        if not program.exists():
            source = ROOT / "tests/vectors/decode.cpp"
            warnings = ("-Wall", "-Wextra", "-Werror")
            subprocess.run(
                [str(GXX), "-std=c++17", "-O1", *warnings, *flags, "-o", str(program), str(source)], check=True
            )
        return program

    return compiled


@pytest.mark.slow
@pytest.mark.skipif(GXX is None, reason="no g++ here")
@pytest.mark.thorough
@pytest.mark.parametrize("name", ["gdn_decode_k_last", "gdn_decode_k_first"])
def test_a_cpp_program_conforms(gdnspec: Run, tmp_path: Path, build: Callable[..., Path], name: str) -> None:
    count = len(export(gdnspec, tmp_path / "v", "--suite", "smoke", "--suite", "conformance", name=name)["workloads"])
    subprocess.run([build(), tmp_path / "v", tmp_path / "out"], check=True)
    done = gdnspec("vectors", "judge", tmp_path / "v", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert f"PASSED   {count} of {count}" in done.stdout
    assert done.stderr == f"checking out on {name}\n"


@pytest.mark.thorough
@pytest.mark.skipif(GXX is None, reason="no g++ here")
def test_a_cpp_program_with_the_wrong_heads_does_not(inside: Run, tmp_path: Path, build: Callable[..., Path]) -> None:
    export(inside, tmp_path / "v", *options("batch_8", "one_row"))
    subprocess.run([build("-DWRONG_HEADS"), tmp_path / "v", tmp_path / "out"], check=True)
    done = inside("vectors", "judge", tmp_path / "v", tmp_path / "out")
    assert done.returncode == 1
    assert f"INCORRECT_NUMERICAL  out on {NAME}/batch_8\n  output: relative_l2 " in done.stderr
    assert f"repeat: gdnspec vectors judge {tmp_path}/v {tmp_path}/out" in done.stderr
    assert "INCORRECT_NUMERICAL  1 of 2" in done.stdout  # with one key head there is no wrong one


# --- verdicts ----------------------------------------------------------------------------------------------------


def test_verdicts_are_those_of_check(inside: Run, tmp_path: Path) -> None:
    shipped = ("batch_1", "batch_2", "batch_3", "scale_given", "scale_negative", "l2norm_explicit")
    export(inside, tmp_path / "v", *options(*shipped))
    (tmp_path / "mine").mkdir()
    for workload in shipped:
        outputs = right(NAME, workload)
        match workload:
            case "batch_1":
                outputs["output"] = outputs["output"].squeeze(1)
            case "batch_2":  # the carrier that a language without bfloat16 would use
                outputs["output"] = outputs["output"].view(torch.uint16)
            case "batch_3":
                outputs["new_state"][2, 1, 5, 7] = torch.nan
            case "scale_given":
                outputs["new_state"] *= 1.002
            case "scale_negative":
                outputs = {name: value.to(torch.float64) for name, value in outputs.items()}
        save_file(outputs, tmp_path / "mine" / f"{workload}.safetensors")
    done = inside("vectors", "judge", tmp_path / "v", tmp_path / "mine", "--json", tmp_path / "verdicts.jsonl")
    assert done.returncode == 1
    results = {row["workload"]: row for row in map(json.loads, (tmp_path / "verdicts.jsonl").open())}
    assert {name: (row["status"], row["message"].split(";")[0]) for name, row in results.items()} == {
        "batch_1": ("INCORRECT_SHAPE", "output has shape [1, 2, 128], not [1, 1, 2, 128]"),
        "batch_2": ("INCORRECT_DTYPE", "output is U16, not bfloat16"),
        "batch_3": ("NON_FINITE", "new_state: it has values that are not finite"),
        "scale_given": ("INCORRECT_NUMERICAL", results["scale_given"]["message"].split(";")[0]),
        "scale_negative": ("INCORRECT_DTYPE", "output is float64, not bfloat16"),
        "l2norm_explicit": ("PASSED", ""),
    }
    assert results["scale_given"]["message"].startswith("new_state: relative_l2 0.002 > ")
    assert results["scale_given"]["outputs"][1]["worst"]["got"] is not None
    assert "1 of 6" in done.stdout
    assert "judged: conformance 6 of " in done.stdout  # what share of the suite that is
    assert inside("validate", tmp_path / "verdicts.jsonl").returncode == 0


def test_a_workload_of_ones_own_is_judged_by_its_line_and_said_to_be(inside: Run, tmp_path: Path) -> None:
    lines = map(json.loads, (ROOT / f"definitions/gdn/{NAME}/workloads.jsonl").open())
    mine = next(line for line in lines if line["name"] == "one_row") | {"name": "mine"}
    (tmp_path / "mine.jsonl").write_text(json.dumps(mine))
    export(inside, tmp_path / "v", "--workloads", str(tmp_path / "mine.jsonl"))
    (tmp_path / "out").mkdir()
    outputs = right(NAME, "one_row")
    save_file(outputs, tmp_path / "out/mine.safetensors")
    done = inside("vectors", "judge", tmp_path / "v", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "not shipped with gdnspec, judged by the lines in the manifest: mine" in done.stdout


# --- what is refused ---------------------------------------------------------------------------------------------

Spoil = Callable[[Path], object]


def tensor_file(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def edit(change: Callable[[Manifest], object]) -> Spoil:
    def spoil(folder: Path) -> None:
        file = folder / "vectors/manifest.json"
        manifest = json.loads(file.read_text())
        change(manifest)
        file.write_text(json.dumps(manifest))

    return spoil


def first(change: Callable[[Manifest], object]) -> Spoil:
    return edit(lambda manifest: change(manifest["workloads"][0]))


def output(content: bytes) -> Spoil:
    return lambda folder: (folder / "outputs/one_row.safetensors").write_bytes(content)


def truncate(file: str) -> Spoil:
    return lambda folder: (folder / file).write_bytes((folder / file).read_bytes()[:-1])


def flip_a_bit(file: str) -> Spoil:
    def spoil(folder: Path) -> None:
        content = bytearray((folder / file).read_bytes())
        content[-1] ^= 1
        (folder / file).write_bytes(content)

    return spoil


def link(file: str) -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / file).rename(folder / "elsewhere")
        (folder / file).symlink_to(folder / "elsewhere")

    return spoil


def drop(manifest: Manifest) -> None:
    """The hash of an input's file, and a key that nobody knows in its place."""
    manifest["workloads"][1]["sha265"] = manifest["workloads"][1].pop("sha256")


OUTPUT = {"output": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
ROW = "copy/outputs/one_row.safetensors: "

REFUSED: dict[str, tuple[Spoil, str]] = {
    # the folder of vectors
    "no folder": (lambda f: shutil.rmtree(f / "vectors"), "copy/vectors: no such folder (gdnspec vectors export"),
    "no manifest": (lambda f: (f / "vectors/manifest.json").unlink(), "copy/vectors: is not a folder of test vectors"),
    "no JSON": (
        lambda f: (f / "vectors/manifest.json").write_text('{"schema_version": 1,'),
        "manifest.json: line 1, column 22: not JSON: ",
    ),
    "another version": (
        edit(lambda m: (m.update(schema_version=2), m.pop("definition"))),
        "manifest.json: /schema_version: version 2 is unknown: this gdnspec reads version 1",
    ),
    "missing key": (edit(drop), "/workloads/1/sha265: unknown key 'sha265' (did you mean 'sha256'?)"),
    "no workloads": (edit(lambda m: m["workloads"].clear()), "manifest.json: /workloads: "),
    "twice": (
        edit(lambda m: m["workloads"].append(m["workloads"][0])),
        "manifest.json: /workloads/2/workload/name: /workloads/0 already has the name 'scale_zero'",
    ),
    "raised budget": (
        first(lambda w: w["workload"]["budget"]["new_state"].update(relative_l2=0.1)),
        "/workloads/0/workload/budget/new_state/relative_l2: 'scale_zero' is not the workload that gdnspec ships: 0.1,",
    ),
    "raised budget of an output": (
        first(lambda w: w["outputs"][1]["budget"].update(relative_l2=0.1)),
        "/workloads/0/outputs/1/budget/relative_l2: does not follow from the workload's line: 0.1,",
    ),
    "another seed": (first(lambda w: w["workload"].update(seed=1)), "/workloads/0/workload/seed: 'scale_zero' is not"),
    "another scale": (
        first(lambda w: w["scalars"][0].update(value=1.0)),
        "/workloads/0/scalars/0/value: does not follow from the workload's line: 1.0, but gdnspec's own has 0.0",
    ),
    "out of the folder": (
        first(lambda w: w.update(file="../../secret.safetensors")),
        "/workloads/0/file: does not follow from the workload's line",
    ),
    "a name out of the folder": (first(lambda w: w["workload"].update(name="../../x")), "/workloads/0/workload/name: "),
    "another definition": (
        edit(lambda m: m["definition"]["outputs"][1].update(dtype="bfloat16")),
        '/definition/outputs/1/dtype: another definition: "bfloat16", but gdnspec\'s own has "float32"',
    ),
    "no definition of ours": (
        edit(lambda m: m["definition"].update(name="gdn_decode")),
        "manifest.json: /definition/name: no definition 'gdn_decode'",
    ),
    "own line, no preset": (
        first(lambda w: w["workload"].update(name="mine", preset="qwen")),
        "/workloads/0/workload/preset: no preset 'qwen'",
    ),
    "own line, absurd size": (
        first(lambda w: w["workload"].update(name="mine", axes={"batch_size": 1 << 40}, sha256=None)),
        "/workloads/0/",
    ),
    "another hash": (first(lambda w: w.update(sha256="0" * 64)), "/workloads/0/sha256: 000000000000.., but the inputs"),
    "edited input": (
        flip_a_bit("vectors/inputs/one_row.safetensors"),
        "copy/vectors/inputs/one_row.safetensors: was edited: its bytes do not have the manifest's sha256",
    ),
    "longer input": (
        lambda f: (f / "vectors/inputs/one_row.safetensors").open("ab").truncate(1 << 40),
        "inputs/one_row.safetensors: was edited",
    ),
    "no input": (lambda f: (f / "vectors/inputs/one_row.safetensors").unlink(), "one_row.safetensors: no such file"),
    "linked inputs": (link("vectors/inputs"), "copy/vectors/inputs: is a link"),
    # the outputs
    "no outputs": (lambda f: shutil.rmtree(f / "outputs"), "copy/outputs: no such folder"),
    "missing file": (
        lambda f: (f / "outputs/one_row.safetensors").unlink(),
        ROW + "no such file: the outputs of 'one_row' are missing",
    ),
    "a pipe for a file": (
        lambda f: ((f / "outputs/one_row.safetensors").unlink(), os.mkfifo(f / "outputs/one_row.safetensors")),
        ROW + "is not a regular file",
    ),
    "surplus file": (
        lambda f: (f / "outputs/one\x1brow.safetensors").touch(),
        r"copy/outputs: 'one\x1brow.safetensors' belongs to no workload of the manifest (did you mean 'one_row.",
    ),
    "linked output": (link("outputs/one_row.safetensors"), ROW + "is a link (copy the file itself)"),
    "a folder for a file": (
        lambda f: ((f / "outputs/one_row.safetensors").unlink(), (f / "outputs/one_row.safetensors").mkdir()),
        ROW + "is not a regular file",
    ),
    "cut short": (
        truncate("outputs/one_row.safetensors"),
        ROW + "not a complete safetensors file: the data ends at byte",
    ),
    "empty": (output(b""), ROW + "not a complete safetensors file: the header should have 0 bytes, but the file has 0"),
    "absurd header": (
        output(b"\xff" * 64),
        ROW + "not a complete safetensors file: the header should have 1844674407370",
    ),
    "header of nothing": (
        output(tensor_file(b"{\xff}")),
        ROW + "not a complete safetensors file: the header is not UTF-8",
    ),
    "overlapping tensors": (
        output(tensor_file(OUTPUT | {"new_state": OUTPUT["output"]}, bytes(4))),
        ROW + "not a complete safetensors file: the data of 'new_state' begins at byte",
    ),
    "impossible shape": (
        output(tensor_file({"output": {"dtype": "F32", "shape": [1 << 62] * 9, "data_offsets": [0, 4]}}, bytes(4))),
        "does not match its bytes 0 to 4",
    ),
    "missing tensor": (output(tensor_file(OUTPUT, bytes(4))), ROW + f"no tensor 'new_state', an output of {NAME}"),
    "surplus tensor": (
        output(tensor_file({"outptu": OUTPUT["output"]}, bytes(4))),
        ROW + f"'outptu' is not an output of {NAME} (did you mean 'output'?)",
    ),
}


@pytest.mark.parametrize(("spoil", "says"), REFUSED.values(), ids=REFUSED)
def test_nothing_is_judged_where_one_thing_is_wrong(inside: Run, copy: Path, spoil: Spoil, says: str) -> None:
    spoil(copy)
    done = inside("vectors", "judge", copy / "vectors", copy / "outputs")
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert all(line.startswith("gdnspec: ") and line.isprintable() for line in done.stderr.splitlines())
    assert done.stdout == ""


def test_an_output_of_absurd_size_is_another_shape_and_not_read(inside: Run, copy: Path) -> None:
    size = 1 << 42
    header = {
        "output": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]},
        "new_state": {"dtype": "F32", "shape": [0], "data_offsets": [size, size]},
    }
    with (copy / "outputs/one_row.safetensors").open("wb") as file:
        file.write(tensor_file(header))
        file.truncate(file.tell() + size)
    done = inside("vectors", "judge", copy / "vectors", copy / "outputs")
    assert done.returncode == 1
    assert "INCORRECT_SHAPE" in done.stderr
    assert "1 of 2" in done.stdout


def test_the_files_are_looked_through_without_torch(copy: Path) -> None:
    (copy / "outputs/one_row.safetensors").unlink()
    export_again = ["vectors", "export", NAME, *options("one_row"), "--out", str(copy / "again")]
    judge_in_vain = ["vectors", "judge", str(copy / "vectors"), str(copy / "outputs")]
    code = (
        "import sys\nfrom gdnspec.cli.main import main\n"
        f"for code, arguments in ((0, {export_again!r}), (2, {judge_in_vain!r})):\n"
        "    sys.argv = ['gdnspec', *arguments]\n"
        "    try:\n        main()\n    except SystemExit as end:\n        assert end.code == code, end.code\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)

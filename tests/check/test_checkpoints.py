"""Checkpoints of a prefill: lines that are refused, errors by checkpoint, sequences cut at one, calls of a ring."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT, Run
from gdnspec.catalog.definitions import definition
from gdnspec.catalog.workloads import load_workloads, workloads
from gdnspec.check.batch import Batch, Piece
from gdnspec.check.call import Content
from gdnspec.inputs.materialise import materialise
from gdnspec.model.errors import SpecError
from gdnspec.numerics.judge import judge
from helpers_unit import arguments, drawn, line, reference, run_reference
from safetensors.torch import save_file

emulators = reference("emulators")
NAME = "gdn_prefill_checkpoints"
LINE: dict[str, Any] = {
    "name": "x", "suite": "smoke", "preset": "synthetic-gva-1x2-d64", "regime": "typical", "seed": 1,
    "axes": {"total_seq_len": 195, "num_seqs": 2, "num_checkpoints": 3}, "sequence_lengths": [130, 65],
    "scalars": {"checkpoint_interval": 64},
}  # fmt: skip

# --- lines ------------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    # name: (changes, place behind the line's number, what is said)
    "no_interval": ({"scalars": {}}, ": /scalars", "no value for 'checkpoint_interval', which is not optional"),
    "half_a_chunk": ({"scalars": {"checkpoint_interval": 32}}, "", "a positive multiple of 64"),
    "a_fraction": ({"scalars": {"checkpoint_interval": 64.0}}, ": /scalars/checkpoint_interval", "takes a int64"),
    "a_bool": ({"scalars": {"checkpoint_interval": True}}, ": /scalars/checkpoint_interval", "takes a int64"),
    "an_integer_input": (
        {"integers": {"checkpoint_interval": [64]}}, ": /integers/checkpoint_interval", "is not an integer input",
    ),
    "starts_twice": (
        {"integers": {"checkpoint_cu_starts": [0, 2, 3]}}, ": /integers/checkpoint_cu_starts",
        "follows from sequence_lengths",
    ),
    "one_too_many": (
        {"axes": {"total_seq_len": 195, "num_seqs": 2, "num_checkpoints": 5}}, "", "ends at num_checkpoints",
    ),
    "no_count": ({"axes": {"total_seq_len": 195, "num_seqs": 2}}, ": /axes", "'num_checkpoints' has no value"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_line_is_refused_with_its_place(tmp_path: Path, name: str) -> None:
    changes, place, says = REFUSED[name]
    file, found = tmp_path / "w.jsonl", definition(NAME)
    file.write_text(json.dumps(LINE) + "\n")
    assert load_workloads(file, found)[0].integer_inputs(found.definition)["checkpoint_cu_starts"] == [0, 2, 3]
    file.write_text(json.dumps(LINE | changes) + "\n")
    with pytest.raises(SpecError) as caught:
        load_workloads(file, found)
    assert caught.value.problems[0].place == f"line 1{place}"
    assert says in caught.value.problems[0].message


def test_no_interval_of_zero_is_divided_by(tmp_path: Path) -> None:
    (tmp_path / "w.jsonl").write_text(json.dumps(LINE | {"scalars": {"checkpoint_interval": 0}}) + "\n")
    with pytest.raises(SpecError, match="checkpoint_cu_starts"):
        load_workloads(tmp_path / "w.jsonl", definition(NAME))


def test_an_interval_arrives_as_an_integer_and_a_scale_as_a_float() -> None:
    inputs = drawn(definition(NAME), scalars={"checkpoint_interval": 128, "scale": 1})
    kinds = {name: (type(value), value) for name, value in inputs.scalars.items()}
    assert kinds == {"checkpoint_interval": (int, 128), "scale": (float, 1.0)}


def test_generated_lines_keep_checkpoints_as_often_as_asked(gdnspec: Run, tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    command = ("workloads", "generate", NAME, "--preset", "synthetic-gva-1x2-d64", "--lengths", "130,257", "-o", file)
    assert gdnspec(*command, "--scalar", "checkpoint_interval=128", "--device", "cpu").returncode == 0
    (row,) = [json.loads(text) for text in file.read_text().splitlines()]
    assert (row["axes"]["num_checkpoints"], row["scalars"]) == (3, {"checkpoint_interval": 128})
    done = gdnspec("check", NAME, "--workloads", file, "--solution", "torch_chunkwise", "--device", "cpu")
    assert (done.returncode, "1 of 1" in done.stdout) == (0, True), done.stderr
    done = gdnspec(*command, "--force", "--scalar", "checkpoint_interval=100")
    assert (done.returncode, "a positive multiple of 64" in done.stderr) == (2, True)
    other = [word if word != NAME else "gdn_prefill_k_last" for word in command]
    done = gdnspec(*other, "--force", "--scalar", "checkpoint_interval=64")
    assert (done.returncode, "is not a scalar input" in done.stderr) == (2, True)


# --- errors -----------------------------------------------------------------------------------------------------


def test_a_large_checkpoint_hides_no_small_one() -> None:
    """All but one are a million times larger; the small one is off by a tenth."""
    found = definition(NAME).definition
    model = next(tensor for tensor in found.outputs if tensor.name == "checkpoints")
    scope = drawn(definition(NAME)).scope  # three checkpoints: one of sequence 0, two of sequence 2
    expected = torch.randn(3, 4, 64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected[[0, 2]] *= 1e6
    got = expected.clone()
    got[1, 2] *= 1.1
    limits = {"relative_l2": 0.05, "worst_vector": 0.05, "max_over_rms": 0.5}
    verdict = judge(got.float(), expected, model, found, scope, limits)
    assert verdict.status == "INCORRECT_NUMERICAL"
    assert "checkpoints: relative_l2 0.1 > 0.05, worst_vector 0.1 > 0.05" in verdict.message
    assert "worst at checkpoint 1, head 2, row" in verdict.message


@pytest.mark.parametrize(
    ("interval", "strict"),
    [
        (64, True),
        (192, False),
        pytest.param(64, False, marks=pytest.mark.thorough),
        pytest.param(192, True, marks=pytest.mark.thorough),
    ],
)
def test_an_emulator_has_a_checkpoint_within_a_chunk_as_at_its_end(interval: int, strict: bool) -> None:
    """What it keeps is the final state of a call that ends there, in chunks of the same size."""
    found = definition(NAME)
    chosen = {"lengths": (450,), "scalars": {"checkpoint_interval": interval}}
    keywords = arguments(found, drawn(found, **chosen))
    for name, (_, final, kept) in emulators.emulate(found.definition, keywords, emulators.family(strict)):
        assert len(kept) == 450 // interval
        for i in range(len(kept)):
            tokens = (i + 1) * interval
            rows = {key: keywords[key][:tokens] for key in ("q", "k", "v", "g", "beta")}
            ends = {"cu_seqlens": torch.tensor([0, tokens])}
            member = next(e for e in emulators.family(strict) if e.name == name)
            ((_, (_, state, _)),) = emulators.emulate(found.definition, keywords | rows | ends, [member])
            torch.testing.assert_close(kept[i], state[0], rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
        assert not torch.equal(kept[-1], final[0]), "it goes on"


# --- between calls ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interval", [64, 128])
def test_a_sequence_cut_at_any_of_its_places_gives_the_same_checkpoints(interval: int) -> None:
    found = definition(NAME)
    lengths = (200, 50, 64, 0, 129)
    content = Content.of(drawn(found, lengths=lengths, scalars={"checkpoint_interval": interval}), "cpu")
    batch = Batch(found.definition, content)
    for n, length in enumerate(lengths):
        assert set(range(0, length + 1, interval)) <= set(batch.cuts(n))
        for cut in batch.cuts(n):  # what follows is counted from the cut as it was from the beginning
            assert cut // interval + (length - cut) // interval == length // interval
    whole = run_reference(found, {**content.scalars, **absent(found), **content.tensors})
    for last in (False, True):
        cuts = [batch.cuts(n)[-1 if last else len(batch.cuts(n)) // 2] for n in range(5)]
        pieced = {name: torch.full_like(value, torch.nan) for name, value in whole.items()}
        carried: dict[str, torch.Tensor] = {}
        for bounds in (zip([0] * 5, cuts, strict=True), zip(cuts, lengths, strict=True)):
            pieces = [Piece(n, *ends) for n, ends in enumerate(bounds)]
            part = batch.take(pieces, carried)
            assert not list(found.definition.broken(part.scope))
            got = run_reference(found, {**part.scalars, **absent(found), **part.tensors})
            batch.put(pieced, got, pieces)
            carried = batch.carried(pieces, got)
        for name, value in whole.items():
            torch.testing.assert_close(pieced[name], value, rtol=1e-2, atol=1e-4)  # one rounding to bfloat16


def absent(found: Any) -> dict[str, None]:
    return {tensor.name: None for tensor in found.definition.inputs if tensor.optional}


KERNEL = (ROOT / "solutions" / "torch_recurrent" / "kernel.py").read_text()
ARGS = "q, k, v, g, beta, cu_seqlens, initial_state, scale, checkpoint_cu_starts, checkpoint_interval"


def solution(tmp_path: Path, *body: str) -> Path:
    """A folder of solutions with one, `under_test`: a right kernel, whose (o, s, c) a body may spoil."""
    folder = tmp_path / "solutions" / "under_test"
    folder.mkdir(parents=True)
    lines = "".join(f"    {text}\n" for text in (f"o, s, c = prefill_checkpoints({ARGS})", *body, "return o, s, c"))
    (folder / "kernel.py").write_text(f"{KERNEL}\n\ndef run({ARGS}):\n{lines}")
    manifest = json.loads((ROOT / "solutions" / "torch_recurrent" / "solution.json").read_text())
    entry = {"entry": "kernel.py::run", "call": "return", "prepare": None, "supports": []}
    (folder / "solution.json").write_text(json.dumps(manifest | {"name": "under_test", "entries": {NAME: entry}}))
    return folder.parent


def checked(gdnspec: Run, folder: Path, *options: str) -> tuple[int, dict[str, Any]]:
    which = ("--solutions-dir", folder, "--solution", "under_test", "--workload", "two_chunks", "--device", "cpu")
    done = gdnspec("check", NAME, *which, "--json", "-", *options)
    (result,) = [json.loads(text) for text in done.stdout.splitlines()]
    return done.returncode, result


def test_checkpoints_are_judged_when_a_sequence_is_split(gdnspec: Run, tmp_path: Path) -> None:
    """Right on the workload, 260 and 128 tokens, and wrong on any other two sequences."""
    folder = solution(tmp_path, "if len(cu_seqlens) == 3 and len(q) != 388:", "    c = c * 1.1")
    code, result = checked(gdnspec, folder)
    assert (code, result["status"]) == (0, "PASSED")
    code, result = checked(gdnspec, folder, "--symmetries", "--seed", "2")
    assert (code, result["status"]) == (1, "INCORRECT_NUMERICAL")
    assert "checkpoints" in result["message"]
    # None: it is of more query heads than value heads.
    wrong = {name for name, status in result["symmetries"].items() if status not in ("PASSED", None)}
    assert wrong == {"split_and_carry"}


def test_a_right_kernel_keeps_every_symmetry_and_relation(gdnspec: Run, tmp_path: Path) -> None:
    code, result = checked(gdnspec, solution(tmp_path), "--symmetries")
    assert code == 0
    idle = {name for name, status in result["symmetries"].items() if status is None}
    assert idle == {"permute_query_heads_in_group"}
    assert {result["symmetries"][name] for name in result["symmetries"].keys() - idle} == {"PASSED"}
    assert set(result["symmetries"]) > {"flip_key_channels", "permute_sequences", "split_and_carry"}


def test_checkpoints_of_timed_calls_are_judged_too(gdnspec: Run, tmp_path: Path) -> None:
    """Right in the first calls, which a check makes, and wrong later on."""
    folder = solution(
        tmp_path, "import builtins", "builtins.calls = getattr(builtins, 'calls', 0) + 1", "if builtins.calls > 20:",
        "    c = c.clone()", "    c[-1, -1, -1, -1] += 1000",
    )  # fmt: skip
    which = ("--solutions-dir", folder, "--solution", "under_test", "--workload", "two_chunks", "--device", "cpu")
    done = gdnspec("bench", NAME, *which)
    assert done.returncode == 1
    assert "of a timed window: checkpoints: " in " ".join((done.stdout + done.stderr).split())


# --- test vectors -----------------------------------------------------------------------------------------------


def test_vectors_say_the_interval_and_judge_what_comes_back(gdnspec: Run, tmp_path: Path) -> None:
    chosen = ("ragged", "no_checkpoint")
    options = [word for name in chosen for word in ("--workload", name)]
    assert gdnspec("vectors", "export", NAME, "--out", tmp_path / "v", *options).returncode == 0
    manifest = json.loads((tmp_path / "v" / "manifest.json").read_text())
    seen = {entry["workload"]["name"]: entry["scalars"][1] for entry in manifest["workloads"]}
    assert seen["no_checkpoint"] == {"name": "checkpoint_interval", "dtype": "int64", "value": 128, "given": True}
    assert "128.0" not in json.dumps(seen), "an integer, for readers that know the difference"
    (tmp_path / "out").mkdir()
    found = definition(NAME)
    for row in workloads(found):
        if row.name in chosen:
            values = run_reference(found, arguments(found, materialise(found, row)))
            save_file(
                {name: x.contiguous() for name, x in values.items()}, tmp_path / "out" / f"{row.name}.safetensors"
            )
            if row.name == "ragged":
                right = values
    done = gdnspec("vectors", "judge", tmp_path / "v", tmp_path / "out")
    assert (done.returncode, "2 of 2" in done.stdout) == (0, True), done.stderr
    swapped = right | {"checkpoints": right["checkpoints"].flip(0).contiguous()}
    save_file({name: x.contiguous() for name, x in swapped.items()}, tmp_path / "out" / "ragged.safetensors")
    done = gdnspec("vectors", "judge", tmp_path / "v", tmp_path / "out")
    assert done.returncode == 1
    assert "checkpoints: relative_l2" in done.stdout + done.stderr


def test_an_empty_workload_has_no_checkpoints_and_a_budget_all_the_same() -> None:
    found = definition(NAME)
    row = next(row for row in workloads(found) if row.name == "all_empty")
    assert row.budget is not None
    assert row.budget["checkpoints"]["relative_l2"] == 5e-4
    values = run_reference(found, arguments(found, materialise(found, row)))
    assert values["checkpoints"].shape == (0, 2, 64, 64)
    assert line(found, lengths=(0,)).axes["num_checkpoints"] == 0

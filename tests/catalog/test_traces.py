"""Traces: read, found stale, saved without harm to what is there, validated."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT, Run
from gdnspec.catalog.definitions import Found, definitions
from gdnspec.catalog.solutions import Solution, load_solution
from gdnspec.catalog.traces import definition_hash, is_stale, load_traces, save, trace_files
from gdnspec.model.elements import Part
from gdnspec.model.errors import SpecError
from gdnspec.model.trace import Trace
from helpers_traces import DECODE, PREFILL, line, make_timing, make_trace, trace_of, write_traces

RIGHT = "def run{args}:\n    return decode_k_last{args}\n".format(
    args="(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm)"
)
ONE, FOUR = "16x32_batch_1", "16x32_batch_4"


@pytest.fixture
def folder(make_solution: Callable[..., Path]) -> Path:
    return make_solution(RIGHT)


@pytest.fixture
def solution(folder: Path) -> Solution:
    return load_solution(folder)


def reading(file: Path) -> tuple[list[Trace], list[str]]:
    said: list[str] = []
    return load_traces(file, said.append), said


# --- reading ---------------------------------------------------------------------------------------------------


def test_what_was_saved_is_read_again(folder: Path, solution: Solution) -> None:
    trace = trace_of(folder, workload=ONE, timing=make_timing(31.4e-6))
    file = save(solution, trace)
    assert file == folder / "traces" / "nvidia-h200.jsonl"
    assert reading(file) == ([trace], [])
    assert trace_files(solution) == [file]


def test_a_line_that_is_cut_off_or_invalid_is_told_and_passed_over(folder: Path) -> None:
    good, other = trace_of(folder, workload=ONE), trace_of(folder, workload=FOUR)
    (file,) = write_traces(folder, [good])
    misspelt = {**json.loads(line(other)), "staus": "PASSED"}
    file.write_text(line(good) + json.dumps(misspelt) + "\n\n" + line(other) + line(other)[:200])
    traces, said = reading(file)
    assert traces == [good, other]
    assert len(said) == 2
    assert "nvidia-h200.jsonl: line 2: /staus: unknown key 'staus'" in said[0]
    assert "nvidia-h200.jsonl: line 5, column" in said[1]
    assert all("line is skipped" in message for message in said)


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no such file"):
        reading(tmp_path / "gone.jsonl")


# --- a manifest that changed -----------------------------------------------------------------------------------


def stale_after(folder: Path, **changes: object) -> str | None:
    """Why a trace from before these changes of the manifest is stale, the manifest of before being kept."""
    trace, manifest = trace_of(folder, workload=ONE), folder / "solution.json"
    kept = folder / "traces" / "manifests"
    kept.mkdir(parents=True)
    (kept / "before.json").write_bytes(manifest.read_bytes())
    content = json.loads(manifest.read_text())
    entry = content["entries"][DECODE]
    content["entries"][DECODE] = {**entry, **{k: v for k, v in changes.items() if k in entry}}
    manifest.write_text(json.dumps({**content, **{k: v for k, v in changes.items() if k not in entry}}))
    assert load_solution(folder).source_hash != trace.source_hash
    return is_stale(trace, load_solution(folder), definitions()[DECODE])


@pytest.mark.parametrize("change", [{"supports": ["batch_size < 99"]}, {"description": "other words"}])
def test_words_and_conditions_of_a_manifest_make_no_trace_stale(folder: Path, change: dict[str, object]) -> None:
    assert stale_after(folder, **change) is None


def test_another_entry_point_makes_its_traces_stale(folder: Path) -> None:
    (folder / "kernel.py").write_text((folder / "kernel.py").read_text() + RIGHT.replace("def run", "def other"))
    assert stale_after(folder, entry="kernel.py::other") == "the solution has changed since it was measured"


def test_a_kept_manifest_proves_nothing_once_a_source_has_changed(folder: Path) -> None:
    trace = trace_of(folder, workload=ONE)
    assert stale_after(folder, description="other words") is None
    assert is_stale(trace, load_solution(folder), definitions()[DECODE]) is None
    (folder / "kernel.py").write_text((folder / "kernel.py").read_text() + "# other code\n")
    assert is_stale(trace, load_solution(folder), definitions()[DECODE]) is not None


def test_a_manifest_that_was_never_kept_makes_its_traces_stale(folder: Path) -> None:
    trace = trace_of(folder, workload=ONE)
    manifest = folder / "solution.json"
    manifest.write_text(manifest.read_text().replace("made by a test", "other words"))
    assert is_stale(trace, load_solution(folder), definitions()[DECODE]) is not None
    (folder / "traces" / "manifests").mkdir(parents=True)
    (folder / "traces" / "manifests" / "broken.json").write_text("{")
    assert is_stale(trace, load_solution(folder), definitions()[DECODE]) is not None


# --- stale ------------------------------------------------------------------------------------------------------


def changed(found: Found, **changes: object) -> Found:
    return replace(found, definition=found.definition.model_copy(update=changes))


def test_a_trace_is_stale_once_the_source_has_changed(folder: Path, solution: Solution) -> None:
    trace = trace_of(folder)
    assert is_stale(trace, solution, definitions()[DECODE]) is None
    (folder / "kernel.py").write_text("# another comment\n" + (folder / "kernel.py").read_text())
    assert "the solution has changed" in str(is_stale(trace, load_solution(folder), definitions()[DECODE]))


def test_a_trace_is_stale_once_the_definition_has_changed(folder: Path, solution: Solution) -> None:
    found, trace = definitions()[DECODE], trace_of(folder)
    assert "the definition has changed" in str(is_stale(trace, solution, changed(found, flops="1")))


def test_a_version_that_came_later_leaves_traces_fresh_and_a_new_one_does_not(folder: Path, solution: Solution) -> None:
    found = definitions()[DECODE]
    trace = trace_of(folder)
    assert found.definition.version == 1
    assert "version" not in json.loads(trace.model_dump_json(exclude_defaults=True))
    assert is_stale(trace, solution, found) is None
    stale = is_stale(trace, solution, changed(found, version=2))
    assert stale == "it was measured on version 1 of the definition, which now has version 2"
    again = trace.model_copy(
        update={"definition_version": 2, "definition_hash": definition_hash(changed(found, version=2))}
    )
    assert is_stale(again, solution, changed(found, version=2)) is None
    assert definition_hash(changed(found, version=2)) != definition_hash(found)


def test_a_word_mended_in_a_description_leaves_traces_fresh() -> None:
    found = definitions()[DECODE]
    inputs = [tensor.model_copy(update={"description": "other words"}) for tensor in found.definition.inputs]
    assert definition_hash(changed(found, description="other words", inputs=inputs)) == definition_hash(found)
    inputs[0] = inputs[0].model_copy(update={"dtype": "float32"})
    assert definition_hash(changed(found, inputs=inputs)) != definition_hash(found)


def test_what_an_axis_and_a_symmetry_may_say_since_counts_where_they_say_it() -> None:
    found = definitions()[DECODE]
    part = Part(name="heads", shape=["num_q_heads"], description="of them")
    axes = [axis.model_copy(update={"parts": [part]}) if axis.kind == "derived" else axis
            for axis in found.definition.axes]  # fmt: skip
    assert definition_hash(changed(found, axes=axes)) != definition_hash(found)
    symmetries = [symmetry.model_copy(update={"exact": False}) for symmetry in found.definition.symmetries]
    assert definition_hash(changed(found, symmetries=symmetries)) != definition_hash(found)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"axes": {"batch_size": 2}}, "batch_size"),
        ({"axes": {}}, "batch_size"),
        ({"axes": {"batch_size": 1, "num_v_heads": 31}}, "num_v_heads"),
        ({"axes": {"batch_size": 1, "num_v_heads": 32}}, None),
        ({"preset": "qwen3-next-80b-a3b-tp4"}, "preset"),
        ({"regime": "hard_reset"}, "regime"),
        ({"sequence_lengths": [1]}, "sequence_lengths"),
    ],
)
def test_a_trace_is_stale_once_the_workload_has_changed(
    folder: Path, solution: Solution, change: dict[str, object], says: str | None
) -> None:
    trace = trace_of(folder, **{"workload": ONE, **change})
    reason = is_stale(trace, solution, definitions()[DECODE])
    assert reason is None if says is None else reason == f"the workload has changed since it was measured: {says}"


def test_a_trace_is_stale_once_the_workload_is_gone(folder: Path, solution: Solution) -> None:
    reason = is_stale(trace_of(folder, workload="16x32_batch_2567"), solution, definitions()[DECODE])
    assert reason == "the workload '16x32_batch_2567' no longer exists (did you mean '16x32_batch_256'?)"


# --- saving -----------------------------------------------------------------------------------------------------


def test_saving_again_replaces_the_line_and_no_other_byte(folder: Path, solution: Solution) -> None:
    first, second = trace_of(folder, workload=ONE), trace_of(folder, workload=FOUR)
    odd = b'  {"schema_version": 2, "of": "the future"}\r\n\n\xff\xfe not even text\n'
    (file,) = write_traces(folder, [first])
    before, after = line(first).encode(), line(second)[:100].encode()  # cut off, without an end
    file.write_bytes(odd + before + odd + after)
    save(solution, second)
    assert file.read_bytes() == odd + before + odd + after + b"\n" + line(second).encode()
    faster = trace_of(folder, workload=ONE, median=1e-6)
    save(solution, faster)
    assert file.read_bytes() == odd + line(faster).encode() + odd + after + b"\n" + line(second).encode()
    assert [item.name for item in file.parent.iterdir()] == [file.name]


def test_a_line_that_is_no_whole_trace_is_kept_even_of_the_same_workload(folder: Path, solution: Solution) -> None:
    trace = trace_of(folder, workload=ONE)
    later = json.dumps({**json.loads(line(trace)), "schema_version": 2}) + "\n"
    (file,) = write_traces(folder, [trace])
    file.write_text(later)
    save(solution, trace)
    assert file.read_text() == later + line(trace)


def test_of_a_workload_that_stands_twice_one_line_is_left(folder: Path, solution: Solution) -> None:
    one, four = trace_of(folder, workload=ONE), trace_of(folder, workload=FOUR)
    (file,) = write_traces(folder, [one, four, one])
    save(solution, trace_of(folder, workload=ONE, median=1e-6))
    assert [trace.workload for trace in reading(file)[0]] == [ONE, FOUR]


def test_a_time_that_cannot_be_believed_replaces_only_one_of_other_sources(folder: Path, solution: Solution) -> None:
    good = trace_of(folder, workload=ONE)
    suspect = trace_of(folder, workload=ONE, status="SUSPECT_TIMING", message="two clocks", median=1e-9)
    file = save(solution, suspect)
    assert reading(file)[0] == [suspect], "of none there it tells more than nothing"
    save(solution, good)
    save(solution, suspect)
    assert reading(file)[0] == [good]
    of_before = good.model_copy(update={"source_hash": "0" * 64})
    write_traces(folder, [of_before])
    save(solution, suspect)
    assert reading(file)[0] == [suspect]


def test_each_device_has_a_file_and_each_definition_a_line(folder: Path, solution: Solution) -> None:
    for change in ({"workload": ONE}, {"definition": "gdn_decode_k_first", "workload": ONE}, {"device": "nvidia-b200"}):
        save(solution, trace_of(folder, **change))
    assert {file.name: len(reading(file)[0]) for file in trace_files(solution)} == {
        "nvidia-b200.jsonl": 1,
        "nvidia-h200.jsonl": 2,
    }


def test_a_write_that_fails_leaves_the_file_as_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file,) = write_traces(folder, [trace_of(folder, workload=ONE)])
    before = file.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(SpecError, match="cannot be written: No space left on device"):
        save(load_solution(folder), trace_of(folder, workload=FOUR))
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("change", [{"solution": "another"}, {"device": "../../elsewhere"}, {"device": ""}])
def test_a_trace_goes_nowhere_but_to_its_own_file(folder: Path, solution: Solution, change: dict[str, str]) -> None:
    with pytest.raises(ValueError):
        save(solution, trace_of(folder, **change))
    assert not (folder / "traces").exists()


# --- validate ---------------------------------------------------------------------------------------------------


def test_validate_accepts_traces_and_counts_the_stale(gdnspec: Run, folder: Path) -> None:
    write_traces(folder, [trace_of(folder, workload=ONE), trace_of(folder, workload=FOUR, source_hash="0" * 64)])
    done = gdnspec("validate", folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 files valid" in done.stdout
    assert "1 of 2 traces stale: 1 where the solution has changed since it was measured" in done.stdout
    write_traces(folder, [trace_of(folder)])
    assert "stale" not in gdnspec("validate", folder).stdout


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"definition": "gdn_decode_k_lats"}, "line 2: /definition: no definition 'gdn_decode_k_lats' (did you mean"),
        ({"workload": "16x32_batch_5"}, "line 2: /workload: gdn_decode_k_last has no workload '16x32_batch_5'"),
        ({"definition": PREFILL}, f"line 2: /workload: {PREFILL} has no workload {FOUR!r}"),
        ({"solution": "torch_recurrent"}, "line 2: /solution: a trace of 'torch_recurrent' is in the folder of"),
        (
            {"device": "nvidia-h100"},
            "line 2: /device: it was measured on 'nvidia-h100', but the file is named 'nvidia-h200.jsonl'",
        ),
        ({"workload": ONE}, f"line 2: /workload: line 1 already has a trace of {DECODE}/{ONE}"),
        ({"staus": "PASSED"}, "line 2: /staus: unknown key 'staus'"),
        ({"timing": 3}, "line 2: /timing"),
    ],
)
def test_validate_names_the_line_and_what_is_wrong(
    gdnspec: Run, folder: Path, change: dict[str, object], says: str
) -> None:
    good, other = trace_of(folder, workload=ONE), trace_of(folder, workload=FOUR)
    (file,) = write_traces(folder, [good])
    file.write_text(line(good) + json.dumps({**json.loads(line(other)), **change}) + "\n")
    done = gdnspec("validate", file)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_validate_refuses_a_cut_off_line_and_traces_of_nothing(gdnspec: Run, folder: Path, tmp_path: Path) -> None:
    (file,) = write_traces(folder, [trace_of(folder)])
    file.write_text(file.read_text()[:300])
    done = gdnspec("validate", folder)
    assert done.returncode == 2
    assert "nvidia-h200.jsonl: line 1, column" in done.stderr
    (orphan,) = write_traces(tmp_path, [make_trace()])
    done = gdnspec("validate", orphan)
    assert done.returncode == 2
    assert "belongs to no solution" in done.stderr


def test_what_is_shipped_is_valid(gdnspec: Run) -> None:
    done = gdnspec("validate")
    shipped = len(list((ROOT / "solutions").glob("*/traces/*.jsonl")))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) >= 25 + shipped

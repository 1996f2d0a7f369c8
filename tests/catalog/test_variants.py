"""Variants of a solution: what a manifest may say of them, their hashes, and which traces hold for them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from gdnspec.catalog.definitions import definitions
from gdnspec.catalog.solutions import Solution, load_solution, load_variant, solutions
from gdnspec.catalog.trace_check import check_traces
from gdnspec.catalog.traces import files_below, is_stale, save, trace_files
from gdnspec.model.errors import SpecError
from helpers_traces import DECODE, make_trace, trace_of

INPUTS = "q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm"
CODE = f"""
def run({INPUTS}, factor=1.0):
    output, new_state = decode_k_last({INPUTS})
    return output * factor, new_state
"""
DOUBLED: dict[str, Any] = {"description": "twice as much", "arguments": {"factor": 2.0}}
CUDA = '{"entry": "kernel.cu::run", "call": "out"}'


@pytest.fixture
def folder(make_solution: Callable[..., Path]) -> Path:
    return make_solution(CODE, variants={"doubled": DOUBLED})


def rewritten(folder: Path, **changes: Any) -> None:
    file = folder / "solution.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def variants(solution: Solution) -> dict[str, Solution]:
    return {one.name: one for one in solution.variants}


# --- the manifest ----------------------------------------------------------------------------------------------


def test_a_variant_is_a_solution_of_its_own(folder: Path) -> None:
    solution, one = load_solution(folder), load_variant(folder, "doubled")
    assert variants(solution) == {"under_test:doubled": one}
    assert one.variants == []
    assert one.manifest.description == "twice as much"
    assert one.manifest.entries == solution.manifest.entries
    assert solution.settings == {"defines": {}, "arguments": {}}
    assert one.settings == {"defines": {}, "arguments": {"factor": 2.0}}
    assert {"under_test", "under_test:doubled"} <= set(solutions(folder.parent)[0])


def test_a_variant_serves_what_it_names_on_its_own_conditions(make_solution: Callable[..., Path]) -> None:
    entry = {"entry": "kernel.py::run", "call": "return", "supports": ["batch_size < 9"]}
    entries = {DECODE: entry, "gdn_decode_k_first": entry}
    narrow = DOUBLED | {"entries": [DECODE], "supports": {DECODE: ["batch_size == 1"]}}
    folder = make_solution(CODE, entries=entries, variants={"all": DOUBLED, "narrow": narrow})
    whole, some = load_variant(folder, "all").manifest, load_variant(folder, "narrow").manifest
    assert {name: entry.supports for name, entry in whole.entries.items()} == {
        one: ["batch_size < 9"] for one in entries
    }
    assert {name: entry.supports for name, entry in some.entries.items()} == {DECODE: ["batch_size == 1"]}


@pytest.mark.parametrize(
    ("variant", "says"),
    [
        ({"description": "nothing else"}, "/variants/doubled: the variant does not differ from the solution"),
        ({"description": "x", "define": {}}, "/variants/doubled/define: unknown key 'define' (did you mean"),
        (DOUBLED | {"entries": ["gdn_decode_k_lost"]}, "/variants/doubled/entries/0: the solution does not serve"),
        (DOUBLED | {"supports": {"gdn_prefill_k_last": []}}, "/variants/doubled/supports/gdn_prefill_k_last"),
        (DOUBLED | {"supports": {DECODE: ["size == 1"]}}, f"doubled/supports/{DECODE}/0: 'size' is not an axis"),
        (DOUBLED | {"supports": {DECODE: ["1 +"]}}, f"/variants/doubled/supports/{DECODE}/0"),
        (DOUBLED | {"defines": {"TERMS": 2}}, "/variants/doubled/defines: no entry of the variant is in a .cu file"),
        (DOUBLED | {"arguments": {"fcator": 2}}, "run does not take fcator (did you mean 'factor'?)"),
        (DOUBLED | {"arguments": {"scale": 2}}, "/variants/doubled/arguments/scale: gdn_decode_k_last already has"),
        ({"description": "x", "defines": {"A B": 1}}, "/variants/doubled/defines"),
        ({"description": "x", "defines": {"A": "system"}}, "/variants/doubled/defines/A"),
    ],
)  # fmt: skip
def test_what_no_variant_can_be_is_refused_with_its_place(folder: Path, variant: dict[str, Any], says: str) -> None:
    rewritten(folder, variants={"doubled": variant})
    with pytest.raises(SpecError) as refused:
        load_solution(folder)
    assert "solution.json: " in str(refused.value)
    assert says in str(refused.value)


@pytest.mark.parametrize("name", ["carried", "manifests", "Strict", "a:b", "a/b"])
def test_a_variant_has_a_name_that_a_folder_of_traces_can_have(folder: Path, name: str) -> None:
    rewritten(folder, variants={name: DOUBLED})
    with pytest.raises(SpecError, match="/variants"):
        load_solution(folder)


def test_a_cuda_file_takes_macros_and_no_arguments(make_solution: Callable[..., Path]) -> None:
    folder = make_solution("", language="cuda", sources=["kernel.cu"], entries={DECODE: json.loads(CUDA)})
    (folder / "kernel.cu").write_text("TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);\n")
    rewritten(folder, variants={"two": {"description": "x", "defines": {"TERMS": 2}}})
    assert load_variant(folder, "two").settings["defines"] == {"TERMS": 2}
    rewritten(folder, variants={"two": DOUBLED})
    with pytest.raises(SpecError, match=r"/variants/two/arguments: an entry in a \.cu file takes no keyword arguments"):
        load_solution(folder)


# --- hashes and traces -----------------------------------------------------------------------------------------


def test_each_variant_has_a_hash_of_its_own(folder: Path) -> None:
    rewritten(folder, variants={"doubled": DOUBLED, "other": DOUBLED | {"arguments": {"factor": 3.0}}})
    solution = load_solution(folder)
    assert len({solution.source_hash, *(one.source_hash for one in solution.variants)}) == 3


@pytest.mark.parametrize("name", ["hopper_prefill", "cuda_decode", "triton_chunkwise"])
def test_measured_solutions_hold_their_traces(name: str) -> None:
    """Of what was measured last, a definition on a device, all holds. The rest may be of an earlier version, and the
    choice says so."""
    solution = load_solution(ROOT / "solutions" / name)
    stale: dict[tuple[Path, str], list[str | None]] = {}
    recorded: dict[tuple[Path, str], str] = {}
    for file in files_below(solution.folder):
        for text, why in zip(file.read_text().splitlines(), check_traces(file), strict=True):
            line = json.loads(text)
            place = (file, line["definition"])
            stale.setdefault(place, []).append(why)
            recorded[place] = max(recorded.get(place, ""), line["recorded"])
    last = max(recorded, key=lambda place: recorded[place])
    assert set(stale[last]) == {None}


def test_traces_of_a_variant_lie_apart_and_hold_for_it_alone(folder: Path) -> None:
    solution, one = load_solution(folder), load_variant(folder, "doubled")
    theirs = make_trace(solution=one.name, source_hash=one.source_hash)
    files = save(solution, trace_of(folder)), save(one, theirs)
    assert files == (folder / "traces/nvidia-h200.jsonl", folder / "traces/doubled/nvidia-h200.jsonl")
    assert (trace_files(solution), trace_files(one)) == ([files[0]], [files[1]])
    assert files_below(folder) == list(files)
    assert [check_traces(file) for file in files] == [[None], [None]]
    found = definitions()[DECODE]
    assert is_stale(theirs, solution, found) is not None
    with pytest.raises(ValueError, match="a trace of 'under_test:doubled' for 'under_test'"):
        save(solution, theirs)
    files[0].write_bytes(files[1].read_bytes())
    with pytest.raises(SpecError, match="a trace of 'under_test:doubled' is in the folder of 'under_test'"):
        check_traces(files[0])
    rewritten(folder, variants={})
    with pytest.raises(SpecError, match=r"solution.json: /variants: no variant 'doubled'"):
        check_traces(files[1])


def test_a_kept_manifest_holds_for_a_variant_that_it_had_as_it_is(folder: Path) -> None:
    one, kept = load_variant(folder, "doubled"), folder / "traces/manifests/before.json"
    trace = make_trace(solution=one.name, source_hash=one.source_hash)
    kept.parent.mkdir(parents=True)
    kept.write_bytes((folder / "solution.json").read_bytes())
    found = definitions()[DECODE]
    rewritten(folder, description="other words")
    assert is_stale(trace, load_variant(folder, "doubled"), found) is None
    rewritten(folder, variants={"doubled": DOUBLED | {"arguments": {"factor": 4.0}}})
    assert is_stale(trace, load_variant(folder, "doubled"), found) is not None
    assert is_stale(trace_of(folder), load_solution(folder), found) is None

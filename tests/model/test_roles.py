"""Roles of axes: what the tools work out from them, and what is refused with its place."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from gdnspec.catalog.definitions import definition
from gdnspec.model import roles
from gdnspec.model.definition import Definition
from gdnspec.model.errors import SpecError
from gdnspec.model.loading import load

KEPT = "gdn_prefill_checkpoints"
Data = dict[str, Any]


def axis(data: Data, name: str) -> Data:
    return next(item for item in data["axes"] if item["name"] == name)


def of(data: Data, name: str) -> Data:
    return next(item for item in data["inputs"] if item["name"] == name)


WRONG: dict[str, tuple[Callable[[Data], object], str, str]] = {
    "unknown": (lambda d: axis(d, "num_seqs").update(role="sequence"), "/axes/1/role", "sequence"),
    "twice": (
        lambda d: axis(d, "num_checkpoints").update(role="tokens", per_sequence=None), "/axes/2/role",
        "axis 'total_seq_len' already has the role tokens",
    ),
    "of a const axis": (lambda d: axis(d, "head_size").update(role="rows"), "/axes/6/role", "only a var axis"),
    "both": (lambda d: axis(d, "num_checkpoints").update(role="rows"), "/axes/2/per_sequence", "not both"),
    "unknown name": (
        lambda d: axis(d, "num_checkpoints").update(per_sequence="length // checkpoint_intervall"),
        "/axes/2/per_sequence", "is neither length nor a scalar input",
    ),
    "bounds no axis": (lambda d: of(d, "cu_seqlens").update(bounds="total_len"), "/inputs/5/bounds", "is not an axis"),
    "bounds heads": (lambda d: of(d, "cu_seqlens").update(bounds="num_v_heads"), "/inputs/5/bounds", "per_sequence"),
    "bounded by nothing": (lambda d: of(d, "cu_seqlens").pop("bounds"), "/inputs", "an input that bounds it"),
    "floats that bound": (lambda d: of(d, "q").update(bounds="total_seq_len"), "/inputs/0/bounds", "integer tensor"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_contradicts_itself_is_refused_with_its_place(tmp_path: Path, name: str) -> None:
    change, place, says = WRONG[name]
    data = json.loads((ROOT / f"definitions/gdn/{KEPT}/definition.json").read_text())
    change(data)
    file = tmp_path / "definition.json"
    file.write_text(json.dumps({k: v for k, v in data.items() if v is not None}))
    with pytest.raises(SpecError) as caught:
        load(Definition, file)
    (problem,) = caught.value.problems
    assert (problem.file, problem.place.startswith(place), says in problem.message + problem.hint) == (file, True, True)


def test_a_pool_that_is_mutated_says_which_slots_are_written(tmp_path: Path) -> None:
    data = json.loads((ROOT / "definitions/gdn/gdn_decode_pool_k_last/definition.json").read_text())
    place = next(i for i, item in enumerate(data["inputs"]) if item.get("writes"))
    del data["inputs"][place]["writes"]
    file = tmp_path / "definition.json"
    file.write_text(json.dumps(data))
    with pytest.raises(SpecError) as caught:
        load(Definition, file)
    (problem,) = caught.value.problems
    assert (problem.place, problem.hint) == (f"/inputs/{place}", 'give the one that does "writes": true')
    assert problem.message == "no input says which slots of 'pool' are written, although it is mutated"


def test_sizes_follow_from_lengths() -> None:
    kept, stage = definition(KEPT).definition, definition("gdn_chunk_state").definition
    lengths = [130, 0, 64]
    assert roles.sizes(kept, lengths, {"checkpoint_interval": 64}) == {
        "total_seq_len": 194, "num_seqs": 3, "num_checkpoints": 3,
    }  # fmt: skip
    assert roles.sizes(stage, lengths, {})["num_chunks"] == 4
    assert roles.starts(stage, lengths, {}) == {"cu_seqlens": [0, 130, 130, 194], "chunk_cu_starts": [0, 3, 3, 4]}
    verify = definition("gdn_verify_k_last").definition
    assert roles.sizes(verify, [5, 5], {}) == {"batch_size": 2, "draft_tokens": 5}
    assert roles.tokens(verify, {"batch_size": 2, "draft_tokens": 5}) == 10

"""What no call reads may hold anything, and rows may stand apart."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import Run
from gdnspec.bench.ring import Ring
from gdnspec.catalog.definitions import definition, definitions
from gdnspec.catalog.traces import definition_hash
from gdnspec.catalog.workloads import workloads
from gdnspec.check.call import Content
from gdnspec.check.junk import with_junk
from gdnspec.inputs.materialise import materialise
from gdnspec.model.definition import Definition
from gdnspec.model.unread import unread
from gdnspec.sandbox.parent.process import Child
from gdnspec.sandbox.wire.arena import GUARD_BYTE, Slot
from helpers_further import checked, on_a_cpu
from helpers_known_bad import wrong
from pydantic import ValidationError
from sampled import one_in

DECODE, POOL, VERIFY = "gdn_decode_k_last", "gdn_decode_pool_k_last", "gdn_verify_k_last"
CONV = "gdn_conv1d_prefill"
Make = Callable[..., Path]
RIGHT = "def run(**inputs):\n    return decode_k_last(**inputs)\n"

# --- what is not read -------------------------------------------------------------------------------------------

# By definition: how the line's integers are changed, and what is not read then.
UNREAD: dict[str, tuple[str, dict[str, list[int]], dict[str, list[int]]]] = {
    "a_skipped_row": (
        POOL,
        {"read_slots": [0, -1, 2], "write_slots": [0, -1, 2]},
        {"q": [1], "k": [1], "v": [1], "a": [1], "b": [1], "pool": [1, 3, 4]},
    ),
    "a_slot_that_is_written_alone": (
        POOL, {"read_slots": [0, 1, 2], "write_slots": [3, 1, 4]}, {"pool": [3, 4]},
    ),
    "states_after_tokens_that_were_not_accepted": (
        VERIFY,
        {"initial_slots": [0, 1], "state_slots": [2, 3, 4, 5], "accepted": [0, 2]},
        {"pool": [1, 2, 3, 4, 6]},
    ),
    "a_false_flag_but_not_of_an_empty_sequence": (
        CONV,
        {"slots": [0, 1, 2, 3], "has_initial_state": [0, 0, 1, 0], "cu_seqlens": [0, 2, 2, 3, 5]},
        {"conv_states": [0, 3, 4]},
    ),
    "tokens_of_a_skipped_sequence": (
        CONV,
        {"slots": [0, -1, 2], "has_initial_state": [1, 1, 1], "cu_seqlens": [0, 2, 4, 5]},
        {"x": [2, 3], "conv_states": [1]},
    ),
    "tokens_behind_the_last_sequence": (
        CONV, {"slots": [0], "has_initial_state": [1], "cu_seqlens": [0, 3]}, {"x": [3, 4], "conv_states": [1]},
    ),
}  # fmt: skip
AXES = {
    POOL: {"batch_size": 3, "num_slots": 5}, VERIFY: {"batch_size": 2, "draft_tokens": 2, "num_slots": 7},
    CONV: {"total_seq_len": 5},
}  # fmt: skip
HEADS = {"num_q_heads": 1, "num_k_heads": 1, "num_v_heads": 2, "head_size": 8, "kernel_width": 4}


@pytest.mark.parametrize("name", UNREAD)
def test_what_is_not_read_follows_from_slots_flags_and_bounds(name: str) -> None:
    which, integers, expected = UNREAD[name]
    found = definition(which).definition
    axes = dict(AXES[which])
    if which == CONV:
        axes |= {"num_seqs": len(integers["slots"]), "num_slots": 1 + max(*integers["slots"], *expected["conv_states"])}
    sizes = HEADS | {"key_head_dim": 8, "value_head_dim": 8}
    scope = found.bind({axis: sizes[axis] for axis in found.const_axes() if axis in sizes} | axes)
    assert unread(found, scope | integers, integers) == expected


def test_every_definition_says_what_it_does_not_read_on_its_own_rows() -> None:
    for name, found in definitions().items():
        pools = {tensor.indexes for tensor in found.definition.inputs if tensor.indexes is not None}
        row = next(row for row in workloads(found) if row.name in ("skips", "ragged", "rows", "batch_8", "batch_5"))
        inputs = materialise(found, row)
        content = Content.of(inputs, "cpu")
        junked = with_junk(found.definition, content)
        changed = {n for n, x in junked.tensors.items() if not torch.equal(x, content.tensors[n])}
        assert changed >= pools, f"{name}: some slot of every pool is read by nobody"
        for n in changed - {tensor.name for tensor in found.definition.inputs if tensor.is_code}:
            assert bool(junked.tensors[n].isnan().any())
            assert bool(junked.tensors[n].isinf().any())
            assert bool(content.tensors[n].isfinite().all()), "the content itself stays as it was"
        # Of some definitions a row has nothing but its slots.
        if (
            row.name == "skips"
            and {t.name for t in found.definition.inputs if t.dtype not in ("int32", "int64")} > pools
        ):
            assert changed > pools, f"{name}: rows that are skipped are not read"


def test_conditions_of_reading_name_values_of_a_row() -> None:
    content = definition(VERIFY).definition.model_dump(mode="json")
    for name, condition, says in (
        ("state_slots", "acepted == 0", "'acepted' is not a value of its row"),
        ("accepted", "column == 0", "`read_if` needs `indexes`"),
    ):
        inputs = [x | {"read_if": condition} if x["name"] == name else x for x in content["inputs"]]
        with pytest.raises(ValidationError, match=says):
            Definition.model_validate(content | {"inputs": inputs})


MULTIPLIES = {
    "conv_flag_multiplied": (CONV, "ragged"), "pool_skipped_row_multiplied": (POOL, "skips"),
    "pool_masked_load_multiplied": (POOL, "skips"),
}  # fmt: skip


@pytest.mark.parametrize("name", one_in(3, MULTIPLIES))
def test_what_multiplies_by_zero_instead_of_choosing_is_rejected(gdnspec: Run, name: str) -> None:
    which, workload = MULTIPLIES[name]
    results, _ = checked(gdnspec, wrong(name), which, "--workload", workload)
    assert results[workload]["status"] == "NON_FINITE"


POOL_CODE = """
def run(q, k, v, pool, read_slots, write_slots, A_log, a, dt_bias, b, scale, use_qk_l2norm):
    output, rows = torch.zeros_like(v), (read_slots >= 0).nonzero()[:, 0]
    o, S = decode_k_last(
        q[rows], k[rows], v[rows], pool[read_slots[rows].long()], A_log, a[rows], dt_bias, b[rows], scale, use_qk_l2norm
    )
    output[rows], pool[write_slots[rows].long()] = o, S
    # here
    return output
"""


@pytest.mark.parametrize(
    ("tidies", "says"),
    [
        ("torch.nan_to_num_(pool)", "slot"),
        ("q.copy_(torch.nan_to_num(q))", "the call wrote to the input q"),
        ("skipped = read_slots < 0; a[skipped] = -a[skipped]", "the call wrote to the input a"),
    ],
)
def test_junk_is_compared_bit_for_bit_as_well(gdnspec: Run, make_solution: Make, tidies: str, says: str) -> None:
    entry = {"entry": "kernel.py::run", "call": "return", "prepare": None, "supports": []}
    folder = make_solution(POOL_CODE.replace("# here", tidies), entries={POOL: entry})
    results, _ = checked(gdnspec, folder, POOL, "--workload", "skips")
    assert results["skips"]["status"] == "MUTATED_INPUT"
    assert says in results["skips"]["message"]


def test_a_right_kernel_of_a_pool_passes_among_junk_in_every_kind_of_call(gdnspec: Run, make_solution: Make) -> None:
    entry = {"entry": "kernel.py::run", "call": "return", "prepare": None, "supports": []}
    folder = make_solution(POOL_CODE, entries={POOL: entry})
    rows = ("skips", "moved", "shared", "strided_inputs")
    options = [word for row in rows for word in ("--workload", row)]
    results, said = checked(gdnspec, folder, POOL, *options, "--symmetries", "--repeat", "2")
    assert {row: results[row]["status"] for row in rows} == dict.fromkeys(rows, "PASSED"), said


# --- strides ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("leading", "strides"), [(1, (2 * 15 + 7, 15, 5, 1)), (2, (2 * 22, 22, 5, 1))])
def test_a_gap_follows_each_index_of_the_leading_dimensions(leading: int, strides: tuple[int, ...]) -> None:
    slot = Slot("q", "float32", (4, 2, 3, 5), 256, 7, leading)
    block = torch.full((256 + slot.nbytes,), GUARD_BYTE, dtype=torch.uint8)
    view = slot.view(block)
    assert view.stride() == slot.strides == strides
    view.zero_()
    assert bool((slot.gaps(block) == GUARD_BYTE).all())
    assert slot.gaps(block).numel() == 4 * (2 if leading == 2 else 1) * 7 * 4
    assert Slot.from_json(json.loads(json.dumps(slot.to_json()))) == slot


def test_what_a_caller_may_pass_makes_no_measurement_stale() -> None:
    found = definition(VERIFY)
    without = [t.model_copy(update={"strides": None, "read_if": None}) for t in found.definition.inputs]
    assert any(a != b for a, b in zip(without, found.definition.inputs, strict=True))
    bare = replace(found, definition=found.definition.model_copy(update={"inputs": without}))
    assert definition_hash(bare) == definition_hash(found)


def test_rows_with_strides_have_a_gap_in_every_input_that_takes_one() -> None:
    for name, found in definitions().items():
        taking = {tensor.name for tensor in found.definition.inputs if tensor.strides is not None}
        rows = [row for row in workloads(found) if row.name.startswith("strided_inputs")]
        assert [row.suite for row in rows] == (["smoke", "conformance"] if taking else []), name
        for row in rows:
            assert row.gaps.keys() == taking
            assert not row.contiguous(found.definition)


@pytest.mark.parametrize("workload", ["strided_inputs", pytest.param("strided_inputs_odd", marks=pytest.mark.thorough)])
def test_a_kernel_that_reads_slices_flat_is_rejected(gdnspec: Run, workload: str) -> None:
    results, _ = checked(gdnspec, wrong("reads_inputs_flat"), DECODE, "--workload", workload, "--workload", "batch_8")
    assert results["batch_8"]["status"] == "PASSED", "it is right on contiguous inputs"
    assert results[workload]["status"] == "NON_FINITE"


def test_who_needs_contiguous_inputs_says_so_and_it_shows(gdnspec: Run, make_solution: Make) -> None:
    entry = {"entry": "kernel.py::run", "call": "return", "prepare": None, "supports": ["contiguous"]}
    code = "def run(q, **more):\n    assert q.is_contiguous()\n    return decode_k_last(q, **more)\n"
    folder = make_solution(code, entries={DECODE: entry})
    done = gdnspec(
        "check", DECODE, "--solutions-dir", folder.parent, "--solution", folder.name, "--device", "cpu",
        "--workload", "one_row", "--workload", "strided_inputs",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "1 workload: the solution supports only contiguous inputs; 1 of 2 workloads supported" in done.stdout


def test_a_ring_leaves_the_gaps_of_the_workload_and_guards_them(make_solution: Make) -> None:
    job, content = on_a_cpu(make_solution(RIGHT), DECODE, "strided_inputs")
    with Child(job.solution, "cpu", False) as child, Ring(job, content, {}, child, 3, 10.0) as ring:
        ring.fill(torch.Generator().manual_seed(1), 3)
        q = ring._views["q"]
        assert q.shape[0] == 3
        assert q[0].stride(0) == content.tensors["q"][0].numel() + job.workload.gaps["q"]
        assert ring.overrun() is None
        q[1].as_strided((1,), (1,), q[1].storage_offset() + content.tensors["q"][0].numel()).zero_()
        verdict = ring.overrun()
        assert verdict is not None
        assert verdict.status == "RUNTIME_ERROR"

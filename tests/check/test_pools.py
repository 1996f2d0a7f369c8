"""Pools of states: lines that are refused, gaps that are guarded, and slots of its own for every call of a ring."""

import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import steady
import torch
from conftest import Run
from gdnspec.bench.ring import Ring
from gdnspec.build import machine
from gdnspec.catalog.definitions import definition
from gdnspec.catalog.solutions import load_solution
from gdnspec.catalog.workloads import load_workloads, workloads
from gdnspec.check.call import Content
from gdnspec.check.plan import plan
from gdnspec.inputs.materialise import Inputs, materialise
from gdnspec.model.errors import SpecError
from gdnspec.numerics.pools import changed_rows, compact, named_slots
from gdnspec.sandbox.parent.process import Child
from gdnspec.sandbox.wire.arena import GUARD, GUARD_BYTE, HostArena, Slot, lay_out, zones
from helpers_unit import arguments, reference

POOL, VERIFY = "gdn_decode_pool_k_last", "gdn_verify_k_last"
ARGS = "q, k, v, pool, read_slots, write_slots, A_log, a, dt_bias, b, scale, use_qk_l2norm"

# --- lines ------------------------------------------------------------------------------------------------------

PLAIN: dict[str, Any] = {
    "name": "x", "suite": "smoke", "preset": "synthetic-gva-1x2-d64", "regime": "typical", "seed": 1,
}  # fmt: skip
POOL_LINE = PLAIN | {
    "axes": {"batch_size": 3, "num_slots": 6},
    "integers": {"read_slots": [0, -1, 2], "write_slots": [0, -1, 5]},
}
VERIFY_LINE = PLAIN | {
    "axes": {"batch_size": 2, "draft_tokens": 2, "num_slots": 7},
    "integers": {"initial_slots": [0, 1], "state_slots": [2, 3, 4, 5], "accepted": [0, 2]},
}
SKIP_READ, SKIP_WRITE = {"read_slots": [0, -1, 2]}, {"write_slots": [0, -1, 5]}

REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    # name: (line, changes, place behind the line's number, what is said)
    "a_slot_written_twice": (
        POOL_LINE, {"integers": {"read_slots": [0, 1, 2], "write_slots": [3, 4, 3]}}, "", "written by two rows",
    ),
    "a_slot_past_the_end_written": (
        POOL_LINE, {"integers": {**SKIP_READ, "write_slots": [0, -1, 6]}}, "", "write_slots are -1 or slots",
    ),
    "a_slot_past_the_end_read": (
        POOL_LINE, {"integers": {**SKIP_WRITE, "read_slots": [0, -1, 6]}}, "", "read_slots are -1 or slots",
    ),
    "a_slot_below_minus_one": (
        POOL_LINE, {"integers": {**SKIP_WRITE, "read_slots": [0, -2, 2]}}, "", "read_slots are -1 or slots",
    ),
    "a_row_reads_what_another_writes": (
        POOL_LINE, {"integers": {"read_slots": [0, 1, 2], "write_slots": [3, 4, 1]}}, "", "that another row writes",
    ),
    "a_row_half_skipped": (
        POOL_LINE, {"integers": {**SKIP_READ, "write_slots": [0, 1, 5]}}, "", "by both slots or by neither",
    ),
    "too_few_slots": (
        POOL_LINE, {"integers": {**SKIP_WRITE, "read_slots": [0, -1]}}, "/integers/read_slots", "2 values instead of 3",
    ),
    "no_slots": (POOL_LINE, {"integers": SKIP_READ}, "/integers", "no values for 'write_slots', which takes 3"),
    "a_gap_in_what_is_contiguous": (POOL_LINE, {"gaps": {"A_log": 8}}, "/gaps/A_log", "cannot have gaps"),
    "a_gap_of_nothing": (POOL_LINE, {"gaps": {"pool": 0}}, "/gaps/pool", "at least 1"),
    "verify_a_slot_written_twice": (
        VERIFY_LINE,
        {"integers": {"initial_slots": [0, 1], "state_slots": [2, 3, 4, 2], "accepted": [0, 2]}},
        "",
        "no slot is written twice",
    ),
    "verify_a_row_half_skipped": (
        VERIFY_LINE,
        {"integers": {"initial_slots": [0, 1], "state_slots": [2, 3, 4, -1], "accepted": [0, 2]}},
        "",
        "by all of its slots or by none",
    ),
    "verify_a_row_starts_from_what_another_writes": (
        VERIFY_LINE,
        {"integers": {"initial_slots": [0, 3], "state_slots": [2, 3, 4, 5], "accepted": [0, 2]}},
        "",
        "that another row writes",
    ),
    "verify_more_accepted_than_drafted": (
        VERIFY_LINE,
        {"integers": {"initial_slots": [0, 1], "state_slots": [2, 3, 4, 5], "accepted": [0, 3]}},
        "",
        "accepted is a count of draft tokens",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_line_that_no_call_may_be_made_of_is_refused(tmp_path: Path, name: str) -> None:
    row, changes, place, says = REFUSED[name]
    file = tmp_path / "workloads.jsonl"
    file.write_text(json.dumps(row | {"name": "before"}) + "\n" + json.dumps(row | changes) + "\n")
    with pytest.raises(SpecError) as error:
        load_workloads(file, definition(VERIFY if row is VERIFY_LINE else POOL))
    (problem,) = error.value.problems
    assert problem.place == ("line 2: " + place if place else "line 2")
    assert says in problem.message


def test_a_user_is_told_which_constraint_a_line_breaks(gdnspec: Run, tmp_path: Path) -> None:
    row, changes, _, says = REFUSED["a_slot_written_twice"]
    file = tmp_path / "workloads.jsonl"
    file.write_text(json.dumps(row | changes) + "\n")
    done = gdnspec("validate", file, "--definition", POOL)
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert "unique_slots(write_slots)" in said
    assert says in said


# --- gaps -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_slot_with_a_gap_is_viewed_around_it(dtype: str) -> None:
    slots, nbytes = lay_out([("pool", dtype, (3, 2, 4)), ("q", "float32", (5,))], {"pool": 6})
    pool, q = slots
    size = 4 if dtype == "float32" else 2
    assert pool.nbytes == 3 * (8 + 6) * size
    assert q.offset >= pool.offset + pool.nbytes + GUARD
    block = torch.full((nbytes,), GUARD_BYTE, dtype=torch.uint8)
    view = pool.view(block)
    assert (tuple(view.shape), view.stride()) == ((3, 2, 4), (14, 4, 1))
    view.copy_(torch.arange(24).view(3, 2, 4))
    assert torch.equal(pool.view(block).float(), torch.arange(24.0).view(3, 2, 4)), "the view is of the block itself"
    assert tuple(pool.gaps(block).shape) == (3, 6 * size)
    assert bool((pool.gaps(block) == GUARD_BYTE).all()), "what is in the slots is not in the gaps"
    assert all(bool((block[zone] == GUARD_BYTE).all()) for _, zone in zones(slots, nbytes))
    # One element behind slot 1, which a pool without gaps would have in its slot 2.
    view.as_strided((1,), (1,), view.storage_offset() + 14 + 8).zero_()
    assert (pool.gaps(block) != GUARD_BYTE).any(1).tolist() == [False, True, False]
    assert all(bool((block[zone] == GUARD_BYTE).all()) for _, zone in zones(slots, nbytes))


def test_a_slot_without_a_gap_has_none_to_guard_and_travels_with_it() -> None:
    slot, gapped = Slot("x", "float32", (2, 3), GUARD), Slot("x", "float32", (2, 3), GUARD, 5)
    block = torch.zeros(GUARD + 200, dtype=torch.uint8)
    assert slot.gaps(block).numel() == 0
    assert slot.view(block).is_contiguous()
    assert not gapped.view(block).is_contiguous()
    assert Slot.from_json(json.loads(json.dumps(gapped.to_json()))) == gapped
    assert gapped.moved(8).offset == GUARD + 8
    assert gapped.moved(8).gap == 5


# --- a call on the named slots alone ----------------------------------------------------------------------------


def inputs_of(name: str, workload: str) -> Inputs:
    found = definition(name)
    return materialise(found, next(line for line in workloads(found) if line.name == workload))


@pytest.mark.parametrize(
    ("name", "workload"),
    [(POOL, "moved"), (POOL, "skips"), (POOL, "shared"), (f"{POOL}_bf16_state", "strided"), (VERIFY, "skips")],
)
def test_the_named_slots_alone_give_what_the_whole_pool_gives(name: str, workload: str) -> None:
    found, whole = definition(name), inputs_of(name, workload)
    small = compact(found.definition, whole)
    reader = getattr(reference("gated_delta_net"), found.definition.reference.split("::")[1])
    output, after = reader(**arguments(found, whole))
    output_of_few, after_of_few = reader(**arguments(found, small))
    named = named_slots(found.definition, whole.scope)["pool"]
    assert len(named) == small.tensors["pool"].shape[0] < whole.tensors["pool"].shape[0]
    assert torch.equal(output_of_few, output)
    assert torch.equal(after_of_few, after[named])
    # Nothing else changes: neither other inputs nor slots that nobody writes.
    before = arguments(found, whole)["pool"]
    pool = found.definition.input("pool")
    assert set(changed_rows(after, before)) == set(found.definition.written(pool, whole.scope) or [])
    assert small.tensors.keys() == whole.tensors.keys()
    assert all(small.tensors[n] is whole.tensors[n] for n in ("q", "k", "v", "a", "b"))


def test_a_pool_of_named_slots_may_be_empty() -> None:
    found = definition(POOL)
    small = compact(found.definition, inputs_of(POOL, "all_skipped"))
    assert small.tensors["pool"].shape[0] == 0
    reader = reference("gated_delta_net").decode_pool_k_last
    output, after = reader(**arguments(found, small))
    assert not output.any()
    assert len(after) == 0


def test_a_definition_without_a_pool_is_left_as_it_is() -> None:
    found = definition("gdn_decode_k_last")
    inputs = inputs_of("gdn_decode_k_last", "one_row")
    assert compact(found.definition, inputs).tensors == inputs.tensors


# --- the ring ---------------------------------------------------------------------------------------------------

Make = Callable[..., Path]
RIGHT = f"""
def run({ARGS}):
    output, after = torch.zeros_like(v), pool.clone()
    rows = (read_slots >= 0).nonzero()[:, 0]
    o, S = decode_k_last(
        q[rows], k[rows], v[rows], pool[read_slots[rows].long()], A_log, a[rows], dt_bias, b[rows], scale, use_qk_l2norm
    )
    output[rows] = o
    pool[write_slots[rows].long()] = S
    # here
    return output
"""


def pool_solution(make_solution: Make, then: str = "") -> Path:
    code = RIGHT.replace("    # here\n", textwrap.indent(textwrap.dedent(then), "    "))
    entry: dict[str, Any] = {"entry": "kernel.py::run", "call": "return", "prepare": None, "supports": []}
    return make_solution(code, entries={POOL: entry})


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("workload", ["shared", "skips", "halves", "one_slot"])
def test_every_call_of_a_ring_has_slots_of_its_own(workload: str, count: int, make_solution: Make) -> None:
    found, solution = definition(POOL), load_solution(pool_solution(make_solution))
    line = next(line for line in workloads(found) if line.name == workload)
    device = machine.device("cpu")
    assert device is not None
    (job,) = plan([solution], [(found, [line])], device)
    content = Content.of(materialise(found, line), "cpu")
    generator = torch.Generator().manual_seed(3)
    given = {name: content.tensors[name].tolist() for name in ("read_slots", "write_slots")}
    named = named_slots(found.definition, content.scope)["pool"]
    with Child(solution, "cpu", False) as child, Ring(job, content, {}, child, count, 10.0) as ring:
        ring.fill(generator, count)
        slots = {name: ring._views[name].tolist() for name in given}
        pool = ring._views["pool"]
        sets = []
        for i in range(count):
            # The same pattern under other names: who shares, who is skipped, who stays in place.
            for name, values in given.items():
                assert [slot == -1 for slot in slots[name][i]] == [slot == -1 for slot in values]
            pairs = {(old, new) for name in given for old, new in zip(given[name], slots[name][i], strict=True)}
            renamed = dict(pairs)
            assert len(renamed) == len(pairs), "one name for each slot"
            sets.append({new for new in renamed.values() if new != -1})
            assert len(sets[-1]) == len(named)
            assert sets[-1] <= set(range(len(pool)))
            # Up to signs and powers of two, which exact symmetries are, the state is that of the workload.
            for old, new in renamed.items():
                if old != -1:
                    mine, theirs = (torch.frexp(x)[0].abs() for x in (pool[new], content.tensors["pool"][old]))
                    unread = old not in given["read_slots"]  # named for writing alone: junk
                    assert bool(mine.isnan().any()) if unread else torch.equal(mine, theirs)
        assert len(set().union(*sets)) == count * len(named), "no two calls share a slot"
        free = sorted(set(range(len(pool))) - set().union(*sets))
        assert bool(torch.isnan(pool[free]).all()), "what no call names is NaN"
        assert ring.overrun() is None
        if free:
            pool[free[-1], 0, 0, 0] = 1.0
            verdict = ring.overrun()
            assert verdict is not None
            assert verdict.status == "MUTATED_INPUT"
            pool[free[-1], 0, 0, 0] = torch.nan
        if count > 1:  # in a shorter window the slots of the other calls are nobody's
            ring.fill(generator, 1)
            others = sorted(set().union(*sets[1:]))
            assert bool(torch.isnan(pool[others]).all())
            pool[others[0], 0, 0, 0] = 1.0
            verdict = ring.overrun()
            assert verdict is not None
            assert verdict.status == "MUTATED_INPUT"


BENCHED = {
    # name: (what is done in timed calls, workload, statuses)
    "right": ("", "one_slot", {"PASSED"}),
    # The pool of a ring over one_slot is named to its last slot: what is written to is another call's.
    "writes_to_the_slot_of_another_call": (
        """
        if timed_calls() and len(pool) > 1:
            pool[(write_slots[0] + 1) % len(pool)] *= 1.5
        """,
        "one_slot",
        {"INCORRECT_NUMERICAL"},
    ),
    "writes_to_a_slot_that_it_does_not_name": (
        """
        if timed_calls():
            named = {*read_slots.tolist(), *write_slots.tolist()}
            pool[next(i for i in range(len(pool)) if i not in named), 0, 0, 0] = 0
        """,
        "shared",
        {"MUTATED_INPUT", "INCORRECT_NUMERICAL"},
    ),
    # Its own results are right, and those of the call before: within the budget nothing else is promised here.
    "writes_to_a_slot_that_the_call_before_read": (
        """
        import builtins
        if timed_calls():
            for slot, kept in getattr(builtins, "only_read", {}).items():
                if slot < len(pool) and torch.equal(pool[slot], kept):  # in the same window
                    pool[slot, 0, 0, 0] += 1
            only_read = set(read_slots.tolist()) - set(write_slots.tolist())
            builtins.only_read = {slot: pool[slot].clone() for slot in only_read}
        """,
        "shared",
        {"MUTATED_INPUT"},
    ),
}


@pytest.mark.parametrize("name", BENCHED)
def test_what_goes_wrong_in_a_timed_call_on_a_pool_is_not_passed(gdnspec: Run, make_solution: Make, name: str) -> None:
    then, workload, statuses = BENCHED[name]
    folder = pool_solution(make_solution, then)
    file = folder.parent / "t.jsonl"
    done = gdnspec(
        "bench", POOL, "--device", "cpu", "--solutions-dir", folder.parent, "--solution", folder.name,
        "--workload", workload, "--seconds", "0.3", "--seed", "5", "--json", file, before=steady.both,
    )  # fmt: skip
    (line,) = file.read_text().splitlines()
    trace = json.loads(line)
    assert trace["status"] in statuses, (trace["status"], trace["message"])
    assert done.returncode == (0 if statuses == {"PASSED"} else 1)


def test_memory_in_a_file_has_the_gaps_as_well() -> None:
    (slot,), nbytes = lay_out([("pool", "float32", (2, 4))], {"pool": 3})
    arena = HostArena(nbytes)
    assert arena.block is not None
    slot.view(arena.block).fill_(1.0)
    slot.gaps(arena.block).fill_(GUARD_BYTE)
    flat = arena.block[slot.offset : slot.offset + slot.nbytes].view(torch.float32).view(2, 7)
    assert bool((flat[:, :4] == 1).all())
    assert bool(flat[:, 4:].isnan().all())
    arena.close()

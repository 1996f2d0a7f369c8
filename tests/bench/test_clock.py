"""Ways to work while the clock stands still: each must fail, and what is honest must pass."""

import os
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from conftest import Run
from gdnspec.bench.speed import Graph
from gdnspec.bench.spot_checks import EACH, Left, Samples, Scattered
from gdnspec.catalog.solutions import load_solution
from gdnspec.cli.live import lines
from gdnspec.sandbox.child import tamper
from gdnspec.sandbox.child.opened import Refused, unpacked
from gdnspec.sandbox.parent.process import Child
from helpers_traces import make_timing, make_trace
from test_bench import ARGS, HEAD, RIGHT, timed

Make = Callable[..., Path]
INTO = ARGS.replace(")", ", output, new_state)")  # of `call: out`

# Work that a timed call puts off, and what does it later. `call: out`, for nothing is unpacked there.
PUT_OFF = f"""
pending = []

def run{INTO}:
    def work():
        x, y = decode_k_last{ARGS}
        output.copy_(x), new_state.copy_(y)
    if timed_calls():
        pending.append(work)
    else:
        work()

def catch_up():
    while pending:
        pending.pop(0)()
"""

LATE = {
    # The child looks at this module for functions that were replaced.
    "when_the_child_looks_for_tampering": """
        import statistics, types
        class Looked(types.ModuleType):
            def __getattribute__(self, name):
                catch_up()
                return super().__getattribute__(name)
        statistics.__class__ = Looked
        """,
    "once_the_child_has_said_that_it_is_done": """
        from gdnspec.sandbox.wire import channel
        honest = channel.Channel.send
        def send(self, message, *more, **named):
            honest(self, message, *more, **named)
            catch_up()
        channel.Channel.send = send
        """,
    "when_the_next_request_comes": """
        from gdnspec.sandbox.wire import channel
        honest = channel.Channel.receive
        def receive(self, *more, **named):
            found = honest(self, *more, **named)
            catch_up()
            return found
        channel.Channel.receive = receive
        """,
    "in_the_place_of_the_copies": """
        from gdnspec.sandbox.child import windows
        def copy(self, returned):
            import threading
            threading.Thread(target=catch_up).start()
        windows.Windows._copy = copy
        """,
}


@pytest.mark.parametrize("how", LATE)
def test_work_that_is_done_after_the_window_is_found_out(gdnspec: Run, make_solution: Make, how: str) -> None:
    code = PUT_OFF + textwrap.dedent(LATE[how])
    code, trace, said = timed(gdnspec, make_solution(code, call="out", name="late"))
    assert code == 1, said
    assert trace.status in ("TAMPERED", "SUSPECT_TIMING", "NON_FINITE", "INCORRECT_NUMERICAL"), trace.message
    assert trace.timing is None


def test_what_is_put_off_and_done_at_once_passes(gdnspec: Run, make_solution: Make) -> None:
    """The stand-in of the tests above is right where nothing is put off."""
    code = PUT_OFF.replace("pending.append(work)", "work()")
    code, trace, said = timed(gdnspec, make_solution(code, call="out"))
    assert (code, trace.status) == (0, "PASSED"), said


CONTAINERS = {
    "a_tuple_that_computes_when_it_is_unpacked": f"""
        class Outputs(tuple):
            def __iter__(self):
                return iter(decode_k_last(*tuple.__getitem__(self, 0)))
            def __len__(self):
                return 2
        return Outputs(({ARGS},))
        """,
    "a_named_tuple": f"""
        from collections import namedtuple
        return namedtuple("Outputs", "output new_state")(*decode_k_last{ARGS})
        """,
    "a_list_that_computes": f"""
        class Outputs(list):
            def __getitem__(self, i):
                return decode_k_last{ARGS}[i]
            def __iter__(self):
                return iter(decode_k_last{ARGS})
        return Outputs([None, None])
        """,
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_only_a_plain_tuple_or_list_counts(gdnspec: Run, make_solution: Make, name: str) -> None:
    folder = make_solution(HEAD + textwrap.indent(textwrap.dedent(CONTAINERS[name]), "    "))
    code, trace, _ = timed(gdnspec, folder)
    assert (code, trace.status, trace.timing) == (1, "TAMPERED", None)
    assert "returned a Outputs instead of a plain tuple of output, new_state" in trace.message


@pytest.mark.parametrize("kind", [tuple, list])
def test_a_plain_tuple_or_list_of_tensors_is_taken(kind: type) -> None:
    outputs = {"output": torch.zeros(2), "new_state": torch.zeros(3)}
    values = [torch.ones(2), torch.ones(3)]
    assert unpacked(kind(values), outputs) == values
    assert unpacked(values[0], {"output": outputs["output"]}) == values[:1], "one output needs no tuple"


@pytest.mark.parametrize(
    ("returned", "kind"),
    [(None, "shape"), ({"output": 1}, "shape"), ((torch.ones(2),), "shape"), (iter([torch.ones(2)] * 2), "shape"),
     ((torch.ones(2), torch.nn.Parameter(torch.ones(3))), "tampered"), ((torch.ones(2), 1.0), "shape")],
)  # fmt: skip
def test_anything_else_is_refused(returned: Any, kind: str) -> None:
    outputs = {"output": torch.zeros(2), "new_state": torch.zeros(3)}
    with pytest.raises(Refused) as refused:
        unpacked(returned, outputs)
    assert refused.value.kind == kind


# --- looking for tampering runs nobody's code ---------------------------------------------------------------------


def test_a_replaced_class_of_a_module_is_named_and_never_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    import statistics

    before, asked = tamper.originals(), []

    class Looked(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            asked.append(name)
            return super().__getattribute__(name)

    assert tamper.replaced(before) == []
    monkeypatch.setattr(statistics, "__class__", Looked)
    asked.clear()
    found = tamper.replaced(before)
    assert asked == []
    assert "statistics.__class__" in found


def test_a_replaced_function_of_the_worker_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from gdnspec.sandbox.child import opened, windows

    before = tamper.originals()
    monkeypatch.setattr(opened, "unpacked", lambda *_: [])
    monkeypatch.setattr(windows.Windows, "run", lambda *_: {})
    assert tamper.replaced(before) == [
        "gdnspec.sandbox.child.opened.unpacked",
        "gdnspec.sandbox.child.windows.Windows.run",
    ]


# --- before the window ----------------------------------------------------------------------------------------------


def test_the_child_stands_still_while_its_content_is_written(make_solution: Make) -> None:
    """A thread of the solution could watch the memory, and begin before the clock does."""
    solution = load_solution(make_solution(HEAD + "    " + RIGHT))
    with Child(solution, "cpu", False) as child:
        child.load(solution.manifest.entries["gdn_decode_k_last"].model_dump())
        assert child._process is not None
        stat = Path(f"/proc/{child._process.pid}/stat")
        with child.stopped():
            while stat.read_text().rpartition(")")[2].split()[0] != "T":
                os.sched_yield()
        child.load({"entry": "kernel.py::run", "prepare": None})  # it answers again


# --- samples --------------------------------------------------------------------------------------------------------


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def test_samples_see_what_changes_in_any_call() -> None:
    rows = torch.randn(7, 5)
    seen = Samples([Left(rows)], generator())
    before = seen.take()
    assert len(before) == 7 * EACH * 2  # two halves of a float32
    assert torch.equal(before, seen.take())
    rows[4] += 1
    assert not torch.equal(before, seen.take())


def test_samples_of_a_pool_are_of_the_slots_that_calls_name() -> None:
    pool = torch.randn(9, 6).to(torch.bfloat16)
    slots = torch.tensor([[2], [5]])
    seen = Samples([Left(pool, slots)], generator())
    before = seen.take()
    pool[[0, 1, 3, 4, 6, 7, 8]] += 1
    assert torch.equal(before, seen.take())
    pool[5] += 1
    assert not torch.equal(before, seen.take())


def test_samples_of_scattered_tensors_and_of_nothing() -> None:
    tensors = [torch.randn(4) for _ in range(3)]
    places = torch.tensor([x.data_ptr() for x in tensors])
    seen = Samples(
        [
            Scattered(tensors, places),
            Left(torch.empty(3, 0)),
            Left(torch.ones(2, 2), torch.empty(2, 0, dtype=torch.int64)),
        ],
        generator(),
    )
    before = seen.take()
    tensors[2] *= 2
    assert not torch.equal(before, seen.take())
    assert len(Samples([], generator()).take()) == 0


@pytest.mark.parametrize("kind", ["left", "scattered"])
def test_elements_of_one_byte_are_read_by_pairs_that_a_gpu_can_address(kind: str) -> None:
    """A GPU reads two bytes at even addresses alone. At an odd one its context is lost, and the run with it."""
    codes = torch.randint(-127, 128, (7, 6), dtype=torch.int8)
    places = torch.tensor([row.data_ptr() for row in codes])
    one = Left(codes) if kind == "left" else Scattered(list(codes), places)
    row, column = one.draw(generator())
    assert bool((column % 2 == 1).any())
    addresses = one.addresses(row, column)
    assert not bool((addresses % 2).any())
    assert bool(((codes.data_ptr() + row * 6 + column) - addresses <= 1).all()), "the pair has the element"


# --- graphs, and figures above the bound ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernels", "launched", "says"),
    [
        (0, 3, "contains no kernel"),
        (0, None, "contains no kernel"),
        (29, 3, "contains only 29 kernels, but one call"),
        (10, None, None), (30, 3, None), (31, 3, None), ("many", 3, "contains no kernel"),
    ],
)  # fmt: skip
def test_a_graph_holds_the_kernels_of_its_calls(kernels: Any, launched: Any, says: str | None) -> None:
    found = Graph.of(10, {"kernels": kernels, "launched": launched}).incomplete
    assert (found is None) if says is None else says in (found or "")


def test_a_figure_above_the_bound_is_never_silent() -> None:
    trace = make_trace(timing=make_timing(95e-6, bound=100e-6))
    assert trace.status == "PASSED"
    assert ["105% of the bound" in said for said in trace.warnings] == [True]
    assert any("warning: 105% of the bound" in line for line in lines(trace))
    assert make_trace(timing=make_timing(105e-6, bound=100e-6)).warnings == []

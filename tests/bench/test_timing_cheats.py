"""Ways to look fast on a GPU: each must end as SUSPECT_TIMING or as wrong. `pytest -m timing_cheats` runs the list."""

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Run
from test_bench import ARGS, HEAD, RIGHT, timed
from test_clock import INTO, LATE

pytestmark = [pytest.mark.gpu, pytest.mark.timing_cheats]

KEPT = """
        import builtins
        kept = getattr(builtins, "kept", None)
        if kept is None:
            kept = builtins.kept = {}"""


def forged(seconds: str) -> str:
    """Replaces what the worker says of a window."""
    return f"""
        from gdnspec.sandbox.child import loop
        honest = loop.Worker._window
        def window(self, message):
            calls = message["calls"]
            return {{**honest(self, message), "device": {seconds}}}
        if not hasattr(loop, "mine"):
            loop.mine = True
            loop.Worker._window = window
        {RIGHT}
        """


CHEATS: dict[str, str] = {
    # The work goes to a stream that no event of the timed one waits for.
    "side_stream": f"""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        o, s = torch.empty_like(v), torch.empty_like(state)
        with torch.cuda.stream(stream):
            torch.cuda._sleep(2_000_000)  # clocks: a millisecond
            x, y = decode_k_last{ARGS}
            o.copy_(x), s.copy_(y)
        return o, s
        """,
    "thread_that_works_later": f"""
        import threading, time
        if not timed_calls():
            {RIGHT}
        o, s = torch.full_like(v, float("nan")), torch.full_like(state, float("nan"))
        def later():
            time.sleep(0.05)
            x, y = decode_k_last{ARGS}
            o.copy_(x), s.copy_(y)
        threading.Thread(target=later).start()
        return o, s
        """,
    "output_cache_by_content": f"""{KEPT}
        key = tuple(x.shape for x in (q, v, state))
        if key not in kept:
            kept[key] = decode_k_last{ARGS}
        return tuple(x.clone() for x in kept[key])
        """,
    "works_only_when_not_timed": f"""
        if torch.cuda.is_current_stream_capturing():
            return torch.zeros_like(v), torch.zeros_like(state)
        {RIGHT}
        """,
    "patched_elapsed_time": f"""
        torch.cuda.Event.elapsed_time = lambda self, other: 1e-3
        {RIGHT}
        """,
    "patched_perf_counter": f"""
        import time
        now = time.perf_counter
        time.perf_counter = lambda: now() / 10
        {RIGHT}
        """,
    "patched_statistics": f"""
        import statistics
        statistics.median = min
        {RIGHT}
        """,
    "graph_of_stale_work": f"""{KEPT}
        key = (v.data_ptr(), v.shape)
        if key not in kept or not torch.cuda.is_current_stream_capturing():
            kept[key] = decode_k_last{ARGS}
        return tuple(x.clone() for x in kept[key])
        """,
    "forged_samples": forged("calls * 5e-6"),
    "below_the_floor": forged("calls * 1e-9"),
    "nothing_on_every_seventh_call": f"""
        if timed_calls() % 7 == 1:
            return torch.zeros_like(v), torch.zeros_like(state)
        {RIGHT}
        """,
}


# A graph that holds another kernel in the place of the work, which is done when the clock has stopped. `call: out`.
PADDED = f"""
pending = []

def run{INTO}:
    def work():
        x, y = decode_k_last{ARGS}
        output.copy_(x), new_state.copy_(y)
    if torch.cuda.is_current_stream_capturing():
        torch.cuda._sleep(100_000)
        pending.append(work)
    else:
        work()

def catch_up():
    for work in pending:
        work()
    torch.cuda.synchronize()
"""


@pytest.mark.parametrize("how", LATE)
def test_a_padded_graph_without_the_work_is_caught(gdnspec: Run, make_solution: Callable[..., Path], how: str) -> None:
    code, trace, said = timed(
        gdnspec, make_solution(PADDED + textwrap.dedent(LATE[how]), call="out", name="padded"), device="cuda"
    )
    assert code == 1, said
    assert trace.status in ("SUSPECT_TIMING", "TAMPERED", "NON_FINITE", "INCORRECT_NUMERICAL"), trace.message
    assert not trace.ranked


def test_a_graph_with_fewer_kernels_than_its_calls_is_suspect(gdnspec: Run, make_solution: Callable[..., Path]) -> None:
    """All the work is there, in fewer launches than outside a graph: nobody can tell what was left out."""
    body = f"""
        if not torch.cuda.is_current_stream_capturing():
            torch.zeros(1, device="cuda") + 1
        {RIGHT}
        """
    code, trace, said = timed(
        gdnspec, make_solution(HEAD + textwrap.indent(textwrap.dedent(body), "    ")), device="cuda"
    )
    assert (code, trace.status) == (1, "SUSPECT_TIMING"), said
    assert "outside a graph launches" in trace.message


def test_what_honest_calls_return_is_fetched_from_a_graph(gdnspec: Run, make_solution: Callable[..., Path]) -> None:
    code, trace, said = timed(gdnspec, make_solution(HEAD + "    " + RIGHT), device="cuda")
    assert (code, trace.status) == (0, "PASSED"), said
    assert trace.timing is not None
    assert trace.timing.method == "graph"
    assert "copying" not in trace.message


@pytest.mark.parametrize("name", CHEATS)
def test_a_timing_cheat_is_caught(gdnspec: Run, make_solution: Callable[..., Path], name: str) -> None:
    body = textwrap.indent(textwrap.dedent(CHEATS[name]), "    ")
    folder = make_solution(HEAD + body, name="cheat", deterministic=False)
    code, trace, said = timed(gdnspec, folder, device="cuda")
    assert code == 1, said
    assert trace.status in ("SUSPECT_TIMING", "INCORRECT_NUMERICAL", "NON_FINITE", "TAMPERED"), trace.message
    assert not trace.ranked
    assert trace.timing is None or trace.status == "SUSPECT_TIMING"

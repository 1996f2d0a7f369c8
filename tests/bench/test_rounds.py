"""What windows say of the time of a call: which rounds count, when there is no time, and what makes one suspect."""

import pytest
from gdnspec.bench.rounds import Rounds, Window, paired
from gdnspec.bench.statistics import once_for_a_window
from gdnspec.model.trace import Method

CALLS = 10


def rounds(
    pairs: list[tuple[float, float]], method: Method = "graph", once: float = 1e-4, shorter: float = 0.0
) -> Rounds:
    """Rounds from seconds of a call, (clock, device); a window costs `once` more, and the shorter one `shorter`."""
    found = Rounds(method, CALLS)
    for turn, (clock, device) in enumerate(pairs):
        short = Window(once + shorter + CALLS * clock, shorter + CALLS * device)
        found.add(turn, short, Window(once + 2 * CALLS * clock, 2 * CALLS * device))
    return found


def test_the_time_of_a_call_is_what_more_calls_take_longer() -> None:
    found = rounds([(2e-4, 2e-4)] * 5)
    assert found.device == pytest.approx([2e-4] * 5)
    assert found.clock == pytest.approx([2e-4] * 5)
    assert found.witness.once == pytest.approx(2.1e-3)
    assert found.witness.per_call == pytest.approx(2e-4)
    assert found.doubt() is None


def test_a_round_counts_where_both_clocks_saw_the_longer_window_take_longer() -> None:
    found = rounds([(2e-4, 2e-4)] * 20)
    found.add(20, Window(5e-3, 2e-3), Window(4e-3, 4e-3))  # this process waited in the shorter window
    found.add(21, Window(2e-3, 2e-3), Window(4e-3, 0.0))  # the child says what is no time
    assert [r.turn for r in found.counted] == list(range(20))
    assert min(found.device) > 0
    assert found.doubt() is None, "a tenth may be lost"


@pytest.mark.parametrize(("method", "lost"), [("graph", 3), ("events", 3), ("cpu", 16)])
def test_there_is_no_time_where_too_few_rounds_count(method: Method, lost: int) -> None:
    good, bad = (2e-4, 2e-4), (-1.5e-4, 2e-4)
    found = rounds([good] * (20 - lost) + [bad] * lost, method)
    assert f"in {lost} of 20 rounds, 20 calls took no longer than 10" in (found.doubt() or "")
    assert rounds([good] * 2, method).doubt() is not None, "three rounds at least"
    assert rounds([bad] * 30, method).doubt() is not None


def test_on_a_gpu_the_clocks_agree_in_most_rounds() -> None:
    """On a busy machine this process waits between two windows, the child in them: of the same round both tell."""
    assert rounds([(2e-4, 2e-4), (9e-4, 2e-4), (2e-4, 2e-4), (8e-4, 2e-4), (2e-4, 2e-4)]).doubt() is None
    assert rounds([(2e-4, 2e-4), (9e-4, 9e-4), (3e-3, 3e-3)]).doubt() is None, "slow in both"
    assert "by the judge's own clock" in (rounds([(1e-3, 1e-6)] * 5).doubt() or "")
    assert "by the judge's own clock" in (rounds([(1e-6, 1e-3)] * 5).doubt() or "")
    mostly = [(1e-3, 1e-6)] * 3 + [(1e-3, 1e-3)] * 2
    assert rounds(mostly).doubt() is not None, "a lie in most rounds"


def test_on_a_cpu_any_wait_may_lengthen_a_window_and_hidden_work_is_in_each() -> None:
    busy = [(2e-3, 2e-4), (2.1e-4, 2e-4), (9e-3, 2e-4), (3e-4, 2e-4)]
    assert rounds(busy, "cpu").doubt() is None, "one window in which nothing else ran tells that nothing is hidden"
    assert rounds([(1e-3, 1e-6)] * 4, "cpu").doubt() is not None
    assert rounds([(1e-3, 9e-3)] * 4, "cpu").doubt() is not None, "no part takes longer than the whole"


@pytest.mark.parametrize("method", ["graph", "cpu"])
def test_who_works_more_slowly_in_the_shorter_window_is_suspect(method: Method) -> None:
    """Ten calls of 1 ms, and 9 ms of waiting in each shorter window: by the difference a call takes 0.1 ms."""
    padded = rounds([(1e-3, 1e-3)] * 20, method, shorter=9e-3)
    assert padded.summary.median == pytest.approx(1e-4)
    assert "their difference does not measure a call" in (padded.doubt() or "")
    assert rounds([(1e-3, 1e-3)] * 20, method).doubt() is None


def test_what_a_window_costs_once_by_hand() -> None:
    assert once_for_a_window([1.1e-3, 1.1e-3, 5e-3], [2.1e-3, 2.1e-3, 2.1e-3]) == pytest.approx(1e-4)
    with pytest.raises(ValueError, match="no samples"):
        once_for_a_window([], [])


def test_ratios_are_taken_of_rounds_that_both_have() -> None:
    """A round that one of them lost would set all later ones off against their neighbours'."""
    mine, theirs = Rounds("graph", CALLS), Rounds("graph", CALLS)
    for turn in range(6):
        drift = 1e-4 * (1 + turn)
        mine.add(turn, Window(drift, 10 * drift), Window(2 * drift, 20 * drift))
        lost = turn == 2
        theirs.add(turn, Window(drift, 20 * drift), Window(0.0 if lost else 2 * drift, 40 * drift))
    found = paired(theirs, mine)
    assert found is not None
    assert (found.median, found.p10, found.p90, found.count) == pytest.approx((2.0, 2.0, 2.0, 5))
    assert paired(Rounds("graph", CALLS), mine) is None

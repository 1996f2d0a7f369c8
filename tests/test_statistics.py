"""Figures of disturbed rounds: which rounds count, when there is no figure, and what a window costs once."""

import pytest
from gdnspec.timing.statistics import once_for_a_window, resolved, summary


def test_a_round_counts_where_every_clock_saw_the_longer_window_take_longer() -> None:
    device = [2e-4] * 20
    clock = [2e-4] * 20
    assert resolved(device, clock) == list(range(20))
    clock[3] = -1.5e-3
    device[7] = 0.0
    assert resolved(device, clock) == [number for number in range(20) if number not in (3, 7)]
    assert resolved(device) == [number for number in range(20) if number != 7]


def test_there_is_no_figure_where_too_few_rounds_count() -> None:
    good, bad = 2e-4, -1.5e-3
    assert resolved([good] * 18 + [bad] * 2) == list(range(18)), "a tenth may be lost"
    assert resolved([good] * 17 + [bad] * 3) is None
    assert resolved([good] * 2) is None, "three rounds at least"
    assert resolved([good] * 2, enough=2) == [0, 1]
    assert resolved([bad] * 30) is None
    assert resolved([]) is None


def test_clocks_of_other_rounds_are_not_compared() -> None:
    with pytest.raises(ValueError, match="argument 2 is longer"):
        resolved([1.0] * 3, [1.0] * 4)


@pytest.mark.parametrize("rounds", range(3, 401))
def test_what_is_left_out_moves_the_median_within_its_interval(rounds: int) -> None:
    """Where there is a figure, it is one that all the rounds together would not contradict."""
    lost = max(m for m in range(rounds) if resolved([-1.0] * m + [1.0] * (rounds - m)))
    every = [-1.0] * lost + [float(1 + number) for number in range(rounds - lost)]
    counted = resolved(every)
    assert counted is not None
    found, of_all = summary([every[number] for number in counted]), summary(every)
    assert found.p10 > 0
    assert of_all.interval[0] <= found.median <= of_all.interval[1]


def test_what_a_window_costs_once_by_hand() -> None:
    assert once_for_a_window([1.1e-3, 1.1e-3, 5e-3], [2.1e-3, 2.1e-3, 2.1e-3]) == pytest.approx(1e-4)
    # Ten calls of 0.1 ms; whoever waits 0.5 ms in each shorter window seems to take half the time.
    assert once_for_a_window([1.5e-3] * 3, [2e-3] * 3) == pytest.approx(1e-3)
    with pytest.raises(ValueError, match="no samples"):
        once_for_a_window([], [])

"""Intervals of medians: repeatable, about as wide as they say, and wider where whole rounds are off."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tilewright.records import (
    Measured,
    Modelled,
    Timing,
    from_json,
    is_beyond_noise,
    median_interval,
    ratio_interval,
    to_json,
)

ROUNDS, RUNS = 6, 7


def times(seed: int, middle_us: float, *, call: float = 0.004, of_round: float = 0.002) -> tuple[float, ...]:
    """Like a GPU's: calls scatter, rounds are off as a whole, and one call in forty is disturbed."""
    draw = random.Random(seed)
    made = []
    for _ in range(ROUNDS):
        shift = draw.gauss(1.0, of_round)
        for _ in range(RUNS):
            late = draw.random() / 3 if draw.random() < 0.025 else 0.0
            made.append(middle_us * shift * draw.gauss(1.0, call) * (1.0 + late))
    return tuple(made)


def measured(seed: int, middle_us: float, control_us: float | None = None) -> Measured:
    control = Timing("kernel again", times(seed + 1000, control_us or middle_us), ROUNDS)
    return Measured(
        "H200", {"n": 5}, Timing("kernel", times(seed, middle_us), ROUNDS), (), middle_us / 2, control=control
    )


def test_the_same_times_have_the_same_interval() -> None:
    one = Timing("kernel", times(1, 100.0), ROUNDS).by_round
    assert median_interval(one) == median_interval.__wrapped__(one)
    assert len(one) == ROUNDS
    assert {len(each) for each in one} == {RUNS}
    low, high = median_interval(one).low, median_interval(one).high
    assert low < Timing("kernel", times(1, 100.0), ROUNDS).median_us < high


def test_the_median_is_inside_about_as_often_as_is_said() -> None:
    inside = 0
    for seed in range(30):
        interval = median_interval.__wrapped__(Timing("kernel", times(seed, 100.0), ROUNDS).by_round)
        inside += interval.low <= 100.1 and interval.high >= 99.9
    assert inside >= 26  # of 30: six rounds are few


def test_rounds_that_are_off_as_a_whole_make_it_wider() -> None:
    steady = Timing("kernel", times(3, 100.0, of_round=0.0), ROUNDS)
    shaken = Timing("kernel", times(3, 100.0, of_round=0.03), ROUNDS)
    assert shaken.interval_us.half_width > 3 * steady.interval_us.half_width
    as_one_round = replace(shaken, rounds=1)
    assert shaken.interval_us.half_width > 1.3 * as_one_round.interval_us.half_width


def test_what_shakes_both_contenders_of_a_round_leaves_their_ratio_alone() -> None:
    shifts = [1.0, 1.1, 0.9, 1.2, 0.8, 1.05]
    draw = random.Random(5)
    ours, theirs = (
        tuple(tuple(middle * shift * draw.gauss(1.0, 0.003) for _ in range(RUNS)) for shift in shifts)
        for middle in (100.0, 110.0)
    )
    paired = ratio_interval(theirs, ours, paired=True)
    assert paired.low < 1.1 < paired.high
    assert paired.half_width < 0.5 * ratio_interval(theirs, ours, paired=False).half_width


def test_three_percent_is_seen_every_time_and_nothing_is_never() -> None:
    for seed in range(10):
        fast, slow = measured(seed, 100.0), measured(seed + 50, 103.0)
        assert is_beyond_noise(fast, slow, 0.01)
        assert not is_beyond_noise(slow, fast, 0.01)
        assert not is_beyond_noise(fast, measured(seed + 90, 100.0), 0.01)


def test_a_gain_within_what_times_scatter_is_none() -> None:
    def scattering(middle_us: float) -> Measured:
        shifts = (0.9, 1.0, 1.1, 0.92, 1.08, 1.0)
        samples = tuple(middle_us * shift for shift in shifts for _ in range(RUNS))
        return Measured("H200", {}, Timing("kernel", samples, ROUNDS), (), 1.0)

    assert not is_beyond_noise(scattering(97.0), scattering(100.0), 0.01)
    assert is_beyond_noise(scattering(70.0), scattering(100.0), 0.01)


def test_a_gain_must_exceed_what_the_kernel_differs_from_itself() -> None:
    fast, slow = measured(1, 97.0), measured(2, 100.0)
    assert is_beyond_noise(fast, slow, 0.01)
    shaky = measured(1, 97.0, control_us=102.0)
    assert shaky.control_error == pytest.approx(0.05, abs=0.01)
    assert not is_beyond_noise(shaky, slow, 0.01)


def test_modelled_times_do_not_scatter() -> None:
    slow = Modelled("H200", {}, (), 100.0, 10.0, 0.5, 0, 8, 100, 1)
    assert is_beyond_noise(replace(slow, time_us=99.7), slow, 0.002)
    assert not is_beyond_noise(replace(slow, time_us=99.9), slow, 0.002)


def test_measurements_of_earlier_versions_are_read() -> None:
    now = to_json(measured(1, 100.0))
    for name in ("control", "precision", "conditions", "answered_otherwise"):
        del now[name]
    del now["kernel"]["rounds"]
    read = from_json(Measured, now)
    assert read.control is None
    assert read.control_error == 0.0
    assert read.kernel.rounds == 1


def test_rounds_are_equally_long() -> None:
    with pytest.raises(ValueError, match="not 2 equal rounds"):
        Timing("kernel", (1.0, 2.0, 3.0), 2)

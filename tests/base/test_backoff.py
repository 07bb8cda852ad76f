import math

import pytest

from standfast.base.time import Backoff, compute_delay


def test_delays_double_up_to_the_maximum():
    delays = [compute_delay(attempt, initial=0.5, maximum=3.0) for attempt in range(5)]
    assert delays == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_the_multiplier_can_be_chosen():
    assert [compute_delay(attempt, initial=1, multiplier=3) for attempt in range(3)] == [1, 3, 9]


@pytest.mark.parametrize("maximum", [30.0, math.inf])
def test_an_attempt_too_large_for_a_float_waits_the_maximum(maximum):
    assert compute_delay(100_000, initial=0.5, maximum=maximum) == maximum


def test_an_initial_delay_of_zero_never_grows():
    assert compute_delay(100_000, initial=0, maximum=30.0) == 0


@pytest.mark.parametrize(("chance", "expected"), [(0.0, 4.0), (0.5, 3.5), (1.0, 3.0)])
def test_jitter_is_the_fraction_that_is_left_to_chance(chance, expected):
    assert compute_delay(2, initial=1.0, jitter=0.25, rng=lambda: chance) == expected


def test_jitter_never_exceeds_the_maximum():
    assert compute_delay(9, initial=1.0, maximum=8.0, jitter=1.0, rng=lambda: 0.0) == 8.0


def test_a_backoff_counts_its_attempts_until_it_is_reset():
    backoff = Backoff(initial=1.0, maximum=3.0)
    assert [backoff.next_delay() for _ in range(3)] == [1.0, 2.0, 3.0]
    backoff.reset()
    assert backoff.next_delay() == 1.0

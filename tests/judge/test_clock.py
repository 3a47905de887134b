"""From windows to a time: what cancels, what is noticed."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_agent.judge.clock import EFFORT, Round, draw_batch_sizes, interval, narrow_enough, speedup, trusted, typical
from cuda_agent.judge.reward import faster, near_threshold, reward_of
from cuda_agent.judge.verdict import Interval, Times


def rounds(per_call: float, fixed: float, noise: float = 0.0, count: int = 12, seed: int = 0) -> list[Round]:
    draw = random.Random(seed)

    def window(n: int) -> float:
        disturbed = draw.expovariate(1 / noise) * n * per_call if noise else 0.0
        return fixed + n * per_call + disturbed

    sizes = [draw_batch_sizes(20, 16) for _ in range(count)]
    return [Round(n1, window(n1), n2, window(n2)) for n1, n2 in sizes]


def test_what_does_not_grow_with_n_cancels() -> None:
    found = interval(rounds(per_call=3e-3, fixed=5.0))
    assert found.ms == pytest.approx(3.0, rel=1e-6)
    assert found.high - found.low < 1e-6


def test_the_interval_holds_the_truth_under_noise() -> None:
    hits = 0
    for seed in range(400):
        found = interval(rounds(1e-3, 1e-2, noise=0.01, seed=seed))
        hits += found.low <= 1.003 <= found.high  # the lower quartile of what adds 1 % on average
    assert hits >= 340  # of 400; a bootstrap of a dozen rounds covers nine tenths, a little less than its nominal 95 %


def test_a_runner_that_works_outside_the_inner_window_gains_nothing() -> None:
    honest = rounds(1e-3, 1e-4, noise=0.005, seed=1)
    ahead = [Round(r.n1, r.t1 * 0.3, r.n2, r.t2 * 0.3) for r in honest]
    copies = [Round(r.n1, 3e-3 * r.n1, r.n2, 3e-3 * r.n2) for r in honest]
    windows = [Round(h.n1, h.t1 + c.t1, h.n2, h.t2 + c.t2) for h, c in zip(honest, copies, strict=True)]
    reported, whole = trusted(ahead, windows, copies)
    assert reported == whole
    assert whole.ms == pytest.approx(1.0, rel=0.05)
    reported, _ = trusted(honest, windows, copies)
    assert reported == interval(honest)


def test_copies_are_taken_off_as_they_usually_are() -> None:
    draw = random.Random(5)
    calm = rounds(2e-3, 5e-4)
    hit = [Round(r.n1, r.t1 * draw.choice([1, 1, 2]), r.n2, r.t2 * draw.choice([1, 1, 2])) for r in calm]
    for found, true in zip(typical(hit), calm, strict=True):
        assert found.t2 == pytest.approx(true.t2, rel=0.02)


def test_a_blurred_whole_time_confirms_nothing() -> None:
    blurred = rounds(1e-3, 1e-4, noise=1.0, seed=3)
    reported, whole = trusted(rounds(1e-3, 1e-4), blurred, rounds(0.0, 0.0, seed=3))
    assert reported == whole


def test_disturbances_that_only_add_time_hardly_move_the_result() -> None:
    draw = random.Random(4)
    calm = rounds(1e-3, 1e-4, noise=0.002, count=16)
    hit = [Round(r.n1, r.t1 + draw.expovariate(500), r.n2, r.t2 + draw.expovariate(500)) for r in calm]
    assert interval(hit).ms == pytest.approx(1.0, rel=0.1)


def test_a_machine_that_slows_down_for_a_while_does_not_change_a_ratio_in_turns() -> None:
    draw = random.Random(6)
    slowed = [(r, draw.choice([1.0, 1.0, 1.4])) for r in rounds(1e-3, 1e-4)]
    ours = [Round(r.n1, r.t1 * by, r.n2, r.t2 * by) for r, by in slowed]
    baseline = [Round(r.n1, 1.5 * r.t1, r.n2, 1.5 * r.t2) for r in ours]
    found = speedup(baseline, ours)
    assert (found.low, found.ratio, found.high) == pytest.approx((1.5, 1.5, 1.5))


def test_too_few_rounds_decide_nothing() -> None:
    assert interval(rounds(1e-3, 0.0, count=2)).low == 0.0
    assert not narrow_enough(rounds(1e-3, 0.0, count=2), EFFORT["cpu"]["training"])
    assert narrow_enough(rounds(1e-3, 0.0), EFFORT["cpu"]["full"])


@given(st.integers(2, 64), st.integers(1, 200))
def test_batches_fit_the_slots_and_differ(slots: int, aim: int) -> None:
    n1, n2 = draw_batch_sizes(slots, aim)
    assert 1 <= n1 < n2 <= slots


def around(ms: float, half: float) -> Interval:
    return Interval(ms=ms, low=ms - half, high=ms + half)


@pytest.mark.parametrize(
    ("eager", "compiled", "candidate", "reward"),
    [
        (2.0, 1.5, 1.0, 3),
        (2.0, 1.04, 1.0, 2),
        (1.04, 1.04, 1.0, 1),
        (1.0, 2.0, 1.0, 1),  # slower than eager: beating compile does not help
        (2.0, None, 1.0, 2),
    ],
)
def test_the_papers_reward(eager: float, compiled: float | None, candidate: float, reward: int) -> None:
    times = Times(
        eager=around(eager, 0.0),
        compile=None if compiled is None else around(compiled, 0.0),
        candidate=around(candidate, 0.0),
    )
    assert reward_of(times) == reward


def test_faster_means_past_the_threshold_with_the_intervals() -> None:
    assert faster(around(1.0, 0.01), around(1.1, 0.01))
    assert not faster(around(1.0, 0.05), around(1.1, 0.01))
    assert near_threshold(around(1.0, 0.0), around(1.09, 0.0))
    assert not near_threshold(around(1.0, 0.0), around(1.5, 0.0))

"""From windows to a time per forward call.

A window is the referee's own wall clock around a batch of n iterations: inputs are copied from private memory into the
arena, the runner runs, its outputs are copied back to private memory. A calibration is the same without the runner. The
time per iteration is the slope of the windows over n, less that of the calibrations, so that every cost that does not
grow with n cancels.

Each window gives two times. The *whole* one leaves no room to cheat, but the copies' cost is in it and its noise too.
The *inner* one, from the word until the runner says that it has computed, is precise, but one that reads ahead of the
word or works on after its answer would shorten it. Honest code gives the same slope twice; so the inner one is reported
only where the whole one agrees, else the longer of the two.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import NamedTuple

import numpy

from cuda_agent.judge.verdict import Interval, Speedup


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    window_s: aim for the long batch. budget_s: of wall time, drawing inputs and verifying outputs included; twice that
    while a ratio is near the reward's threshold.
    rounds: of a short and a long batch each.
    target: stop once the interval's half-width is this share of the time.
    """

    window_s: float
    budget_s: float
    min_rounds: int
    max_rounds: int
    target: float


# A round on the CPU costs more (its inputs are drawn by one thread) and is noisier, but ratios are known from few.
EFFORT = {
    "cuda": {
        "full": Effort(window_s=0.02, budget_s=3.0, min_rounds=5, max_rounds=20, target=0.007),
        "training": Effort(window_s=0.008, budget_s=0.3, min_rounds=3, max_rounds=6, target=0.03),
        "search": Effort(window_s=0.01, budget_s=0.6, min_rounds=3, max_rounds=8, target=0.015),
    },
    "cpu": {
        "full": Effort(window_s=0.016, budget_s=3.5, min_rounds=4, max_rounds=24, target=0.03),
        "training": Effort(window_s=0.016, budget_s=0.3, min_rounds=3, max_rounds=6, target=0.05),
        "search": Effort(window_s=0.016, budget_s=0.6, min_rounds=3, max_rounds=8, target=0.03),
    },
}

MAX_SLOTS = {"cpu": 64, "cuda": 256}  # a window of 20 µs kernels is still milliseconds long


def draw_batch_sizes(slots: int, aim: int) -> tuple[int, int]:
    """Secret (n1, n2) with n1 < n2 ≤ slots, about aim/5 and aim."""
    top = max(2, min(slots, aim))
    n2 = random.SystemRandom().randint(max(2, top - top // 8), top)
    n1 = max(1, min(n2 - 1, round(n2 / 5)))
    return n1, n2


AGREEMENT = 0.02  # of the inner time: what the whole one may surely exceed it by
_LEAST = 1e-9  # seconds; noise can make a slope of nothing negative
_RESAMPLES = 200
_QUANTILE = 0.25
BLUR = 0.2  # of the inner time: where the excess is known less well than this, it confirms nothing


class Round(NamedTuple):
    """A short and a long batch: iterations and seconds."""

    n1: int
    t1: float
    n2: int
    t2: float


def trusted(inner: list[Round], windows: list[Round], copies: list[Round]) -> tuple[Interval, Interval]:
    """(the time to report, the whole one): the inner time if the whole one confirms it, else the longer of the two.

    windows, copies: whole windows, and calibrations of the same batches. Compared is round by round, since what
    disturbs one window disturbs what is measured inside of it alike.
    """
    precise, safe = interval(inner), interval(windows, copies)
    excess = _slopes(windows) - _slopes(copies) - _slopes(inner)
    low, high = _bounds(excess)
    unit = max(precise.ms, 1e3 * _LEAST)
    sharp = len(inner) >= 3 and (high - low) / 2 * 1e3 <= BLUR * unit
    confirmed = sharp and low * 1e3 <= AGREEMENT * unit
    return (precise if confirmed or precise.ms >= safe.ms else safe), safe


def typical(copies: list[Round]) -> list[Round]:
    """The same batches at what they usually take: a line through the lower quartiles of short and of long ones.

    What a copy costs does not vary with the candidate, but how it is disturbed varies from round to round; and to
    take off too little is on the safe side.
    """
    data = numpy.array(copies)
    slope = max(0.0, float(_slope(data[None])[0]))
    start = max(0.0, float(numpy.quantile(data[:, 1] - slope * data[:, 0], _QUANTILE)))
    return [Round(r.n1, start + slope * r.n1, r.n2, start + slope * r.n2) for r in copies]


def interval(rounds: list[Round], less: list[Round] | None = None) -> Interval:
    """Time per iteration, less that of another set of the same rounds, with a 95 % bootstrap interval."""
    sets = [numpy.array(chosen) for chosen in (rounds, less) if chosen is not None]
    center = float(_per_iteration([data[None] for data in sets])[0])
    if len(rounds) < 3:
        return Interval(ms=max(center, _LEAST) * 1e3, low=0.0, high=math.inf)
    picks = numpy.random.default_rng(0).integers(len(rounds), size=(_RESAMPLES, len(rounds)))
    low, high = numpy.quantile(_per_iteration([data[picks] for data in sets]), (0.025, 0.975))
    return Interval(ms=max(center, _LEAST) * 1e3, low=max(float(low), 0.0) * 1e3, high=max(float(high), _LEAST) * 1e3)


def speedup(slower: list[Round], faster: list[Round]) -> Speedup:
    """Median ratio of two sets of rounds that took turns, with a 95 % bootstrap interval.

    Of whole batches, not of slopes: what does not grow with n pulls the ratio a little towards 1, and halves its noise.
    """
    spent = [numpy.array([max(r.t1 + r.t2, _LEAST) for r in rounds]) for rounds in (slower, faster)]
    ratios = spent[0] / spent[1]
    low, high = _bounds(ratios)
    return Speedup(ratio=float(numpy.median(ratios)), low=low, high=high)


def _slopes(rounds: list[Round]) -> numpy.ndarray:
    return numpy.array([(r.t2 - r.t1) / (r.n2 - r.n1) for r in rounds])


def _bounds(values: numpy.ndarray) -> tuple[float, float]:
    """95 % bootstrap interval of their median."""
    picks = numpy.random.default_rng(0).integers(len(values), size=(_RESAMPLES, len(values)))
    low, high = numpy.quantile(numpy.median(values[picks], axis=1), (0.025, 0.975))
    return float(low), float(high)


def _per_iteration(sets: list[numpy.ndarray]) -> numpy.ndarray:
    slopes = [_slope(data) for data in sets]
    return slopes[0] - slopes[1] if len(slopes) > 1 else slopes[0]


def _slope(rounds: numpy.ndarray) -> numpy.ndarray:
    """Slopes of samples × rounds × 4, from the lower quartiles of short and of long batches.

    What disturbs a machine only adds time, so that a low quantile is steadier than the median. Batches of one kind
    differ a little in n: the median slope between all pairs (Theil–Sen) brings them to their mean n first.
    """
    n1, t1, n2, t2 = (rounds[..., i] for i in range(4))
    pairs = (t2[:, None, :] - t1[:, :, None]) / (n2[:, None, :] - n1[:, :, None])
    rough = numpy.median(pairs.reshape(len(rounds), -1), axis=1)[:, None]
    mean1, mean2 = n1.mean(axis=1, keepdims=True), n2.mean(axis=1, keepdims=True)
    short = numpy.quantile(t1 - rough * (n1 - mean1), _QUANTILE, axis=1)
    long = numpy.quantile(t2 - rough * (n2 - mean2), _QUANTILE, axis=1)
    return (long - short) / (mean2 - mean1)[:, 0]


def narrow_enough(rounds: list[Round], effort: Effort) -> bool:
    if len(rounds) < effort.min_rounds:
        return False
    found = interval(rounds)
    return (found.high - found.low) / 2 <= effort.target * found.ms

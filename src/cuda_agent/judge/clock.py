"""From windows to a time per forward call.

A window is the referee's own wall clock around a batch of n iterations: inputs are copied from private memory into the
arena, the runner runs, its outputs are copied back to private memory. A calibration is the same without the runner. The
time per iteration is the slope of (window − calibration) over n, so that every cost that does not grow with n cancels.

Each window gives two times. The *whole* one leaves no room to cheat, but the copies' cost is in it and its noise too.
The *inner* one, from the word to the answer, is precise, but a runner that reads ahead of the word or works on after
its answer would shorten it. Honest code gives the same slope twice; so the inner one is reported only where the whole
one agrees.
"""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import dataclass

from cuda_agent.judge.verdict import Interval

# Student's t, two-sided 95 %, by degrees of freedom
_T = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26, 10: 2.23, 12: 2.18, 15: 2.13}


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    window_s: aim for the long batch. budget_s: of wall time, drawing inputs and verifying outputs included.
    rounds: of a short and a long batch each.
    target: stop once the interval's half-width is this share of the time.
    """

    window_s: float
    budget_s: float
    min_rounds: int
    max_rounds: int
    target: float


EFFORT = {
    "full": Effort(window_s=0.02, budget_s=3.0, min_rounds=5, max_rounds=20, target=0.007),
    "training": Effort(window_s=0.008, budget_s=0.3, min_rounds=3, max_rounds=6, target=0.03),
    "search": Effort(window_s=0.01, budget_s=0.6, min_rounds=3, max_rounds=8, target=0.015),
}

MAX_SLOTS = 64


def draw_batch_sizes(slots: int, aim: int) -> tuple[int, int]:
    """Secret (n1, n2) with n1 < n2 ≤ slots, about aim/5 and aim."""
    top = max(2, min(slots, aim))
    n2 = random.SystemRandom().randint(max(2, top - top // 8), top)
    n1 = max(1, min(n2 - 1, round(n2 / 5)))
    return n1, n2


AGREEMENT = 0.02  # the inner time may be this much shorter than the whole one's interval allows
BLUR = 0.2  # a whole time with a wider interval than this confirms nothing


def trusted(inner: list[float], whole: list[float]) -> Interval:
    """The inner time if the whole one confirms it, else the whole one. Seconds per iteration, round by round."""
    precise, safe = interval(inner), interval(whole)
    sharp = (safe.high - safe.low) / 2 <= BLUR * max(safe.ms, precise.ms)
    return precise if sharp and precise.ms * (1 + AGREEMENT) >= safe.low else safe


def slope(n1: int, t1: float, n2: int, t2: float) -> float:
    return (t2 - t1) / (n2 - n1)


def interval(seconds: list[float]) -> Interval:
    """Median of the rounds' slopes with a 95 % confidence interval from their median absolute deviation."""
    center = statistics.median(seconds)
    n = len(seconds)
    if n < 2:
        return Interval(ms=center * 1e3, low=0.0, high=math.inf)
    spread = 1.4826 * statistics.median(abs(s - center) for s in seconds)
    degrees = max(d for d in _T if d <= max(1, n - 1))
    half = _T[degrees] * 1.2533 * spread / math.sqrt(n)
    return Interval(ms=center * 1e3, low=max(0.0, center - half) * 1e3, high=(center + half) * 1e3)


def narrow_enough(seconds: list[float], effort: Effort) -> bool:
    if len(seconds) < effort.min_rounds:
        return False
    found = interval(seconds)
    return found.ms > 0 and (found.high - found.low) / 2 <= effort.target * found.ms

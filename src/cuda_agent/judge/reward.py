"""The paper's discrete reward (arXiv 2602.24286, section 3): -1, 1, 2, 3."""

from __future__ import annotations

from cuda_agent.judge.verdict import Interval, Reward, Times

MARGIN = 1.05


def faster(candidate: Interval, baseline: Interval) -> bool:
    """More than 5 % faster, and the confidence intervals say so."""
    return candidate.high * MARGIN < baseline.low


def near_threshold(candidate: Interval, baseline: Interval) -> bool:
    """Whether the ratio's interval comes within 5 % of the threshold, so that the baseline should be measured again."""
    low = baseline.low / max(candidate.high, 1e-9)
    high = baseline.high / max(candidate.low, 1e-9)
    return low < MARGIN * 1.05 and high > MARGIN / 1.05


def reward_of(times: Times) -> Reward:
    if times.candidate is None or times.eager is None or not faster(times.candidate, times.eager):
        return 1
    if times.compile is None or not faster(times.candidate, times.compile):
        return 2
    return 3

"""The paper's discrete reward (arXiv 2602.24286, section 3): -1, 1, 2, 3."""

from __future__ import annotations

from collections.abc import Mapping

from cuda_agent.judge.verdict import Interval, Reward, Speedup, Times

MARGIN = 1.05


def faster(candidate: Interval, baseline: Interval) -> bool:
    """More than 5 % faster, and the confidence intervals say so."""
    return candidate.high * MARGIN < baseline.low


def near_threshold(candidate: Interval, baseline: Interval) -> bool:
    """Whether the ratio's interval comes within 5 % of the threshold, so that the baseline should be measured again."""
    low = baseline.low / max(candidate.high, 1e-9)
    high = baseline.high / max(candidate.low, 1e-9)
    return low < MARGIN * 1.05 and high > MARGIN / 1.05


def clear_of_threshold(ratio: Speedup) -> bool:
    """By another 5 %, so that more rounds would not change the reward."""
    return ratio.low > MARGIN * 1.05 or ratio.high < MARGIN / 1.05


def reward_of(times: Times, side_by_side: Mapping[str, Speedup] | None = None) -> Reward:
    """side_by_side: ratios measured in alternation, which say more than two times."""
    paired = side_by_side or {}

    def beats(name: str, baseline: Interval | None) -> bool:
        if name in paired:
            return paired[name].low > MARGIN
        return times.candidate is not None and baseline is not None and faster(times.candidate, baseline)

    if not beats("eager", times.eager):
        return 1
    return 3 if beats("compile", times.compile) else 2

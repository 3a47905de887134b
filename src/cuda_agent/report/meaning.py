"""What the verdict's codes mean, in words, for reports and the terminal."""

from __future__ import annotations

from cuda_agent.judge.verdict import Interval, Verdict

REWARD = {
    3: "correct, and more than 5 % faster than both eager PyTorch and torch.compile",
    2: "correct, and more than 5 % faster than eager PyTorch, but not than torch.compile",
    1: "correct, but not more than 5 % faster than eager PyTorch",
    -1: "not accepted",
}

STATUS = {
    "accepted": "accepted",
    "build_failed": "a source did not compile",
    "load_failed": "model_new.py did not load, or its signature or state_dict differs from the task's",
    "runtime_error": "forward raised an error",
    "incorrect": "the output is wrong",
    "rule_broken": "a rule was broken",
    "timed_out": "it did not end in time",
    "out_of_memory": "it ran out of memory",
    "crashed": "the process died",
    "judge_error": "the judge or the machine failed; this says nothing about the candidate",
}

ORACLE = {
    "float64": "a float64 run of the task",
    "float32": "a float32 run of the task with TF32 off (the model does not run in float64)",
}

PRECISION = {
    "full": "full: its error is that of eager PyTorch with TF32 off",
    "reduced": "reduced: its error is larger than that of eager PyTorch with TF32 off, and within the tolerance",
}


def reward_in_words(verdict: Verdict) -> str:
    """Without baselines (mode `search`) the reward says that it is correct, and nothing of speed."""
    if verdict.reward == 1 and verdict.times.eager is None:
        return "correct; eager and torch.compile were not timed in this mode"
    return REWARD[verdict.reward]


def milliseconds(value: float) -> str:
    """Three significant digits, never in exponent form: 0.0123, 1.23, 123."""
    if value >= 100:
        return f"{value:.0f}"
    for limit, digits in ((10, 1), (1, 2), (0.1, 3)):
        if value >= limit:
            return f"{value:.{digits}f}"
    return f"{value:.4f}"


def times_table(verdict: Verdict) -> list[tuple[str, Interval, float | None]]:
    """Rows (what ran, its time, how many times faster the candidate is), those that were measured."""
    rows: list[tuple[str, Interval | None, float | None]] = [
        ("eager", verdict.times.eager, verdict.speedup_eager),
        ("torch.compile", verdict.times.compile, verdict.speedup_compile),
        ("torch.compile, same precision", verdict.times.compile_matched, verdict.speedup_matched),
        ("these kernels", verdict.times.candidate, None),
    ]
    return [(name, interval, speedup) for name, interval, speedup in rows if interval is not None]

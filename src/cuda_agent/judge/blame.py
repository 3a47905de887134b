"""From how a runner failed to what the verdict says. What a process says of itself is data; how it ended, we saw."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from cuda_agent.judge.verdict import Status
from cuda_agent.sandbox import Exit


@dataclass(frozen=True)
class Failure:
    """kind: see runner.py and stage.py. phase: load, check or time."""

    kind: str
    message: str
    where: str | None
    phase: str


_STATUS: dict[str, Status] = {
    "exception": "runtime_error",
    "device_error": "crashed",
    "out_of_memory": "out_of_memory",
    "load": "load_failed",
    "signature": "load_failed",
    "state_dict": "load_failed",
    "structure": "incorrect",
    "shape": "incorrect",
    "dtype": "incorrect",
    "device": "incorrect",
    "value": "incorrect",
    "incorrect": "incorrect",
    "mutated-input": "rule_broken",
    "static-output": "rule_broken",
    "not-still": "rule_broken",
    "protocol": "rule_broken",
    "timed_out": "timed_out",
    "crashed": "crashed",
}
_PHASE = {"load": "while it was loaded", "check": "in forward", "time": "while it was timed"}


def explain(failure: Failure, ended: Exit | None) -> tuple[Status, str | None, str]:
    """(status, rule, message)."""
    status = _STATUS.get(failure.kind, "runtime_error")
    rule = (
        failure.kind if status in ("rule_broken", "incorrect", "load_failed") and failure.kind != "incorrect" else None
    )
    when = _PHASE[failure.phase]
    place = f"{failure.where}: " if failure.where else ""
    if failure.kind == "exception" and failure.phase == "load":
        status, rule = "load_failed", "load"
    if failure.kind == "crashed":
        return _explain_exit(ended, when)
    if failure.kind == "timed_out":
        return status, None, f"{failure.message} {when}: an endless loop, an endless kernel, or far too slow"
    if failure.kind in ("exception", "device_error", "out_of_memory"):
        return status, rule, f"{place}{failure.message} ({when})"
    return status, rule, f"{place}{failure.message}"


def _explain_exit(ended: Exit | None, when: str) -> tuple[Status, str | None, str]:
    if ended is None:
        return "rule_broken", "protocol", f"the process closed its connection {when} and lived on"
    if ended.killed_for == "memory":
        return "out_of_memory", None, f"the process went over its memory limit {when} and was ended"
    if ended.killed_for == "processes":
        return (
            "crashed",
            "processes",
            f"the process started more processes or threads than allowed {when} and was ended",
        )
    if ended.killed_for == "time":
        return "timed_out", None, f"the process went over its time limit {when} and was ended"
    if ended.signal is not None:
        name = signal.Signals(ended.signal).name
        return "crashed", None, f"the process died of {name} {when}"
    return "crashed", None, f"the process ended itself with code {ended.code} {when}"

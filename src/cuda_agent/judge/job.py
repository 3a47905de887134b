"""What is asked of the judge."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Literal, Protocol

from cuda_agent.candidate import Candidate
from cuda_agent.judge.verdict import Verdict
from cuda_agent.task import Task


@dataclass(frozen=True)
class Settings:
    """How thorough a judgement is. The guarantees are the same in all modes; the intervals are not.

    mode: `full` for results to report, `training` for rewards in bulk, `search` for ranking schedules.
    trials: fresh random inputs in the correctness phase (paper: five).
    atol, rtol: |error| ≤ rtol·|ref| + atol·min(1, rms(ref)).
    timeout_s: longest single phase of foreign code (loading, one batch of forwards).
    compile_timeout_s: longest compiler run for one source.
    memory_bytes: of the candidate's processes; None: four fifths of the machine.
    baselines: time eager and torch.compile where that is not known yet; without them the reward is at most 1.
    """

    mode: Literal["full", "training", "search"] = "full"
    trials: int = 5
    atol: float = 1e-2
    rtol: float = 1e-2
    timeout_s: float = 60.0
    compile_timeout_s: float = 120.0
    memory_bytes: int | None = None
    baselines: bool = True


@dataclass(frozen=True)
class Job:
    task: Task
    candidate: Candidate
    settings: Settings = field(default_factory=Settings)

    @property
    def key(self) -> str:
        """Content hash: the same job always has the same key."""
        body = json.dumps([self.task.key, self.candidate.key, asdict(self.settings)], sort_keys=True)
        return hashlib.sha256(body.encode()).hexdigest()


class Handle(Protocol):
    def result(self, timeout: float | None = None) -> Verdict: ...
    def cancel(self) -> None: ...


class Judge(Protocol):
    """In process, and later over HTTP and on Ray."""

    def submit(self, job: Job) -> Handle: ...
    def close(self) -> None: ...

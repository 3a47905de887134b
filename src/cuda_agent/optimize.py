"""The loop expert ↔ judge, and the folder that comes out of it.

The model is captured in a confined process, the expert proposes kernels, the judge ranks them, and the fastest is
judged once more from its clean sources with the tightest intervals. Without an LLM; arXiv 2602.24286, section 3 has
the reward, and its agent's role is the expert's here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from cuda_agent.candidate import Candidate
from cuda_agent.errors import CudaAgentError
from cuda_agent.judge.job import Job, Settings
from cuda_agent.judge.verdict import Verdict
from cuda_agent.result import write_result
from cuda_agent.task import Task, check_packages

if TYPE_CHECKING:
    from cuda_agent.judge import LocalJudge

Phase = Literal["capture", "search", "trial", "final", "written"]

BATCH = 4  # proposals in flight: while one is timed, the next are built
FINALISTS = 3  # how many of the fastest may fail the final judgement before the search is given up


class Proposer(Protocol):
    """Whoever writes kernels: the built-in expert, or anything else that can be asked and told."""

    def ask(self, n: int, /) -> Sequence[Any]:
        """Up to n proposals, none when there is nothing left to try. A proposal has a `candidate`, and `str(proposal)`
        says in a few words what it varies."""
        ...

    def tell(self, proposal: Any, verdict: Verdict, /) -> None: ...


@dataclass(frozen=True)
class Trial:
    """One judged proposal. label: what the expert varied. at_s: seconds since the search began."""

    label: str
    candidate: Candidate
    verdict: Verdict
    at_s: float

    @property
    def ms(self) -> float:
        """Time of one forward call in milliseconds; infinite if the judge did not accept it."""
        measured = self.verdict.times.candidate
        return measured.ms if self.verdict.accepted and measured is not None else float("inf")


@dataclass(frozen=True)
class Result:
    """candidate: the fastest that the judge accepted. verdict: its final one. history: all trials in order."""

    task: Task
    candidate: Candidate
    verdict: Verdict
    history: list[Trial]


@dataclass(frozen=True)
class Event:
    """Progress, for whoever shows it.

    capture, search, final: a phase begins. trial: a proposal was judged (`trial`, and `best` so far).
    written: the folder holds the best so far, or the result.
    """

    kind: Phase
    task: Task
    elapsed_s: float
    trial: Trial | None = None
    best: Trial | None = None


class NoCandidate(CudaAgentError):
    """The judge accepted nothing of what was tried."""

    status = "no_candidate"
    exit_code = 1


@dataclass
class _Search:
    task: Task
    prepare: Callable[[], Proposer]
    budget_s: float
    out: Path | None
    judge: LocalJudge
    on_event: Callable[[Event], None]
    start: float = field(default_factory=time.monotonic)
    history: list[Trial] = field(default_factory=list)

    def run(self) -> Result:
        self.judge.warm_up(self.task)  # while the model is captured and the first kernels are compiled
        if self.budget_s > 0:
            self._rounds()
            return self._final()
        return self._first()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.start

    @property
    def best(self) -> Trial | None:
        accepted = [trial for trial in self.history if trial.verdict.accepted]
        return min(accepted, key=lambda trial: trial.ms, default=None)

    def _emit(self, kind: Phase, trial: Trial | None = None) -> None:
        self.on_event(Event(kind, self.task, self.elapsed, trial, self.best))

    def _rounds(self) -> None:
        self._emit("capture")
        expert = self.prepare()
        self._emit("search")
        while self.elapsed < self.budget_s or not self.history:
            proposals = expert.ask(BATCH)
            if not proposals:
                break
            jobs = [Job(self.task, proposal.candidate, Settings(mode="search")) for proposal in proposals]
            handles = [self.judge.submit(job) for job in jobs]
            try:
                for proposal, handle in zip(proposals, handles, strict=True):
                    verdict = handle.result()
                    expert.tell(proposal, verdict)
                    self._record(Trial(str(proposal), proposal.candidate, verdict, self.elapsed))
            finally:
                for handle in handles:
                    handle.cancel()

    def _first(self) -> Result:
        """No budget, no search: the first proposal, judged in full."""
        self._emit("capture")
        proposals = self.prepare().ask(1)
        self._emit("final")
        for proposal in proposals:
            verdict = self.judge.submit(Job(self.task, proposal.candidate, Settings(mode="full"))).result()
            self._record(Trial(str(proposal), proposal.candidate, verdict, self.elapsed))
            if verdict.accepted:
                return Result(self.task, proposal.candidate, verdict, self.history)
        raise NoCandidate(_why_none(self.task, self.history))

    def _record(self, trial: Trial) -> None:
        self.history.append(trial)
        self._emit("trial", trial)
        if self.best is trial:  # an interrupted search leaves the best so far behind
            self._write(trial.candidate, trial.verdict)

    def _write(self, candidate: Candidate, verdict: Verdict) -> None:
        if self.out is not None:
            write_result(self.out, self.task, candidate, verdict, self.history)
            self._emit("written")

    def _final(self) -> Result:
        finalists = sorted((t for t in self.history if t.verdict.accepted), key=lambda trial: trial.ms)[:FINALISTS]
        self._emit("final")
        for trial in finalists:
            clean = Candidate(_sources(trial.candidate.files), trial.candidate.form)
            verdict = self.judge.submit(Job(self.task, clean, Settings(mode="full"))).result()
            if verdict.accepted:
                self._write(clean, verdict)
                return Result(self.task, clean, verdict, self.history)
            self.history.append(Trial(f"{trial.label} (final)", clean, verdict, self.elapsed))
        raise NoCandidate(_why_none(self.task, self.history))


def optimize(
    task: Task,
    *,
    device: str = "auto",
    budget_s: float = 60.0,
    out: Path | None = None,
    judge: LocalJudge | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> Result:
    """See `cuda_agent.optimize`. `judge`: a running one, so that several tasks share its warm workers."""
    check_packages(task)
    with ExitStack() as stack:
        if judge is None:
            from cuda_agent.judge import LocalJudge

            judge = stack.enter_context(LocalJudge(device=device))
        return search(task, lambda: _expert(task, judge), judge, budget_s=budget_s, out=out, on_event=on_event)


def search(
    task: Task,
    prepare: Callable[[], Proposer],
    judge: LocalJudge,
    *,
    budget_s: float,
    out: Path | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> Result:
    """The loop for any proposer; `prepare` makes it, within the budget."""
    return _Search(task, prepare, budget_s, out, judge, on_event or _ignore).run()


def _expert(task: Task, judge: LocalJudge) -> Proposer:
    from cuda_agent.expert import Expert

    captured = judge.confined_call(
        "cuda_agent.expert.capture:capture_source", {"source": task.source, "device": judge.device}
    )
    return Expert(captured, source=task.source, device=judge.device)


def _ignore(event: Event) -> None:
    pass


def _sources(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Without builds: the final judgement compiles for itself."""
    return {path: content for path, content in files.items() if "/.build/" not in path}


def _why_none(task: Task, history: list[Trial]) -> str:
    last = history[-1].verdict if history else None
    why = f"the last of {len(history)} was {last.status}: {last.message}" if last else "the expert proposed nothing"
    return f"{task.origin}: no kernels that the judge accepts were found; {why}"

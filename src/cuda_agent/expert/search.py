"""Ask and tell: which schedule to try next, knowing how the last ones did."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cuda_agent.candidate import Candidate, standalone
from cuda_agent.expert.cpu import CpuEmitter
from cuda_agent.expert.cuda import CudaEmitter
from cuda_agent.expert.emitter import Emitter
from cuda_agent.expert.ir import Kernel
from cuda_agent.expert.model_file import model_file
from cuda_agent.expert.plan import plan_graph
from cuda_agent.judge.verdict import Verdict

Point = tuple[tuple[str, tuple[tuple[str, int], ...]], ...]  # kernel → macro → value, hashable

AT_THE_CEILING = 0.97  # of the roofline: nothing left to win
WORTH_IT = 0.99  # of the best time: a smaller gain does not move the search


@dataclass(frozen=True)
class Proposal:
    """A candidate and how it differs from the default schedule."""

    candidate: Candidate
    schedule: Mapping[str, Mapping[str, int]]
    note: str
    point: Point = field(repr=False, default=())

    def __str__(self) -> str:
        return self.note


class Expert:
    """The built-in policy for one task.

    graph: as `capture_source` returns it. source: of the task. limit: proposals in all. Raises Unsupported, naming the
    operator and its line in model.py.
    """

    def __init__(self, graph: Mapping[str, Any], *, source: str, device: str, seed: int = 0, limit: int = 48) -> None:
        self._planned = plan_graph(graph)
        self._emitter: Emitter = CudaEmitter() if device == "cuda" else CpuEmitter()
        self._device = device
        self._model = model_file(source, graph, self._planned, self._emitter)
        self._spaces = self._emitter.space(self._planned.plan)
        self._random = random.Random(seed)
        self._limit = limit
        self._asked: set[Point] = set()
        self._times: dict[Point, float] = {}
        self._best: Proposal | None = None
        self._best_ms = float("inf")
        self._done = False
        default = _point({name: dict(space.default) for name, space in self._spaces.items()})
        self._default = default
        self._queue: deque[Point] = deque([default])

    @property
    def best(self) -> Proposal | None:
        """The fastest that was accepted."""
        return self._best

    def ask(self, n: int = 1) -> list[Proposal]:
        """Up to n proposals that were not made before; empty when the search is over or waits for `tell`."""
        found: list[Proposal] = []
        while self._queue and len(found) < n and len(self._asked) < self._limit and not self._done:
            point = self._queue.popleft()
            if point not in self._asked:
                self._asked.add(point)
                found.append(self._propose(point))
        return found

    def tell(self, proposal: Proposal, verdict: Verdict) -> None:
        """Learn how a proposal did; a better one moves the search to its neighbourhood."""
        time = verdict.times.candidate
        ms = time.ms if verdict.accepted and time is not None else float("inf")
        self._times[proposal.point] = ms
        first = proposal.point == self._default
        if ms < self._best_ms * WORTH_IT or (first and self._best is None):
            self._queue = deque(self._neighbours(proposal.point))
        if ms < self._best_ms:
            self._best, self._best_ms = proposal, ms
        fraction = verdict.roofline.fraction if verdict.roofline is not None else None
        if fraction is not None and fraction >= AT_THE_CEILING:
            self._done = True

    def _propose(self, point: Point) -> Proposal:
        schedule = {name: dict(macros) for name, macros in point}
        files = self._emitter.emit(self._planned.plan, schedule)
        candidate = Candidate({"model_new.py": self._model.encode(), **files}, "launchers")
        return Proposal(standalone(candidate, self._device), schedule, self._note(point), point)  # type: ignore[arg-type]

    def _note(self, point: Point) -> str:
        default = {(name, macro): value for name, macros in self._default for macro, value in macros}
        several = len(point) > 1
        changed = [
            f"{name + '.' if several else ''}{macro}={value}"
            for name, macros in point
            for macro, value in macros
            if value != default[name, macro]
        ]
        return ", ".join(changed) or "default schedule"

    def _neighbours(self, point: Point) -> list[Point]:
        """One macro, one step; steps on the kernel that moves most first, nearer values before farther ones."""
        schedule = {name: dict(macros) for name, macros in point}
        steps: list[tuple[int, int, Point]] = []
        for rank, name in enumerate(self._by_traffic()):
            for macro, values in self._spaces[name].choices.items():
                at = values.index(schedule[name][macro]) if schedule[name][macro] in values else 0
                for index, value in enumerate(values):
                    if value != schedule[name][macro]:
                        changed = {**schedule, name: {**schedule[name], macro: value}}
                        steps.append((rank, abs(index - at), _point(changed)))
        self._random.shuffle(steps)  # among equals
        return [step for _, _, step in sorted(steps, key=lambda s: s[:2]) if step not in self._asked]

    def _by_traffic(self) -> list[str]:
        """Kernel names, the one that moves most bytes first."""
        nbytes = {b.name: b.nbytes for b in self._planned.plan.buffers}

        def moved(kernel: Kernel) -> int:
            return sum(nbytes.get(b, 0) for b in (*kernel.reads, *kernel.writes))

        kernels = [k for k in self._planned.plan.kernels if k.name in self._spaces]
        return [kernel.name for kernel in sorted(kernels, key=moved, reverse=True)]


def _point(schedule: Mapping[str, Mapping[str, int]]) -> Point:
    return tuple((name, tuple(sorted(macros.items()))) for name, macros in sorted(schedule.items()))

"""Timing a variant of a task's model in rounds, with others in alternation; every output of a candidate is verified.

On a shared CPU the same code is a third slower for a second or two at a time. Two times that were taken one after the
other say little about their ratio there; windows that take turns do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from cuda_agent.judge.clock import Effort, Round, draw_batch_sizes, interval, narrow_enough, speedup, trusted, typical
from cuda_agent.judge.compare import NOTHING, Agreement, Allowance, compare
from cuda_agent.judge.job import Settings
from cuda_agent.judge.peer import Peer, RunnerFailed
from cuda_agent.judge.reward import clear_of_threshold
from cuda_agent.judge.session import TaskSession
from cuda_agent.judge.stage import Window
from cuda_agent.judge.values import dtype_of
from cuda_agent.judge.verdict import Interval, Speedup

_ROUGH = 0.1  # half-width of an interval, as a share of its ratio
_PATIENCE = 2  # budgets to spend on a ratio that is near the reward's threshold


class Beside(NamedTuple):
    """A baseline that took turns with the candidate."""

    time: Interval
    speedup: Speedup


class Measured(NamedTuple):
    """time: what to report. whole: as seen from around the copies. checked: what was verified of its outputs."""

    time: Interval
    whole: Interval
    checked: Agreement
    beside: dict[str, Beside]


def measure(
    session: TaskSession,
    peer: Peer,
    variant: str,
    effort: Effort,
    settings: Settings,
    beside: Sequence[str] = (),
    frozen: Callable[[], AbstractContextManager[Any]] | None = None,
) -> Measured:
    """Time `variant` in the session's timing stage, which `peer` is attached to.

    frozen: enters a context in which the candidate's processes are stopped; None where that would not stop what it has
    started (kernels on a GPU). beside: variants of the task's own runner (attached as well) that take turns with the
    candidate while it is stopped.

    Raises RunnerFailed; with kind `incorrect` or `mutated-input` if an output of a candidate was wrong.
    """
    return _Rounds(session, peer, variant, effort, settings, beside, frozen).run()


class _Rounds:
    def __init__(
        self,
        session: TaskSession,
        peer: Peer,
        variant: str,
        effort: Effort,
        settings: Settings,
        beside: Sequence[str],
        frozen: Callable[[], AbstractContextManager[Any]] | None,
    ) -> None:
        assert session.timing is not None
        self._session, self._stage, self._backend = session, session.timing, session.backend
        self._peer, self._variant = peer, variant
        self._effort, self._settings = effort, settings
        self._beside, self._frozen = beside, frozen
        self._inner: list[Round] = []
        self._windows: list[Round] = []
        self._copies: list[Round] = []
        self._others: dict[str, list[Round]] = {other: [] for other in beside}
        self._checked = NOTHING

    def run(self) -> Measured:
        stage, effort = self._stage, self._effort
        everything = list(range(stage.slots))
        with self._backend.timer_lease(shared=True):
            self._session.fill([0])
            self._session.spread(everything)  # nothing is timed yet
            stage.show(everything)
            self._backend.synchronize()
            for other in self._beside:
                self._session.run_timed(other, everything)
            self._peer.run(stage="timing", variant=self._variant, order=everything)  # allocators and caches settle
            pilot = self._pilot()
        aim = max(4, round(effort.window_s / max(pilot, 1e-7)))
        begun = time.perf_counter()
        while len(self._inner) < effort.max_rounds:
            self._round(*draw_batch_sizes(stage.slots, aim))
            spent = time.perf_counter() - begun
            late = spent > effort.budget_s * (1 if self._decided() else _PATIENCE)
            if len(self._inner) >= effort.min_rounds and (late or self._precise()):
                break
        copies = typical(self._copies)
        reported, whole = trusted(self._inner, self._windows, copies)
        own = self._inner if reported != whole else longer(self._inner, self._windows, copies)
        others = {k: Beside(interval(rounds), speedup(rounds, own)) for k, rounds in self._others.items()}
        return Measured(reported, whole, self._checked, others)

    def _precise(self) -> bool:
        """Narrow intervals: of the time, or of every ratio to what takes turns with it. A ratio that is clear of the
        reward's threshold needs less."""
        if narrow_enough(self._inner, self._effort):
            return True
        ratios = self._ratios()
        return bool(ratios) and all(
            (r.high - r.low) / 2 <= (_ROUGH if clear_of_threshold(r) else self._effort.target) * r.ratio for r in ratios
        )

    def _decided(self) -> bool:
        """Whether more rounds would not change the reward."""
        return all(clear_of_threshold(ratio) for ratio in self._ratios())

    def _ratios(self) -> list[Speedup]:
        return [speedup(rounds, self._inner) for rounds in self._others.values()]

    def _round(self, n1: int, n2: int) -> None:
        everything = range(self._stage.slots)
        order = self._session.seeds.sample(everything, len(everything))
        disjoint = n1 + n2 <= len(order)
        long, short = order[:n2], order[n2 : n2 + n1] if disjoint else order[:n1]
        batches = [long, short] if self._session.seeds.random() < 0.5 else [short, long]
        found: dict[int, tuple[Window, dict[str, float]]] = {}
        if disjoint:
            self._fill([*long, *short])
        for batch in batches:
            if not disjoint:
                self._fill(batch)
            found[len(batch)] = self._batch(batch)
            with self._backend.timer_lease(shared=True):
                self._checked = self._checked.merged(self._verify(batch))
        (a, short_others), (b, long_others) = found[n1], found[n2]
        self._inner.append(Round(n1, a.inner, n2, b.inner))
        self._windows.append(Round(n1, a.whole, n2, b.whole))
        self._copies.append(Round(n1, a.copies, n2, b.copies))
        for other, rounds in self._others.items():
            rounds.append(Round(n1, short_others[other], n2, long_others[other]))

    def _fill(self, slots: Sequence[int]) -> None:
        with self._backend.timer_lease(shared=True):
            self._session.fill(slots)

    def _batch(self, batch: Sequence[int]) -> tuple[Window, dict[str, float]]:
        """The window of a batch, and seconds of the others on the same inputs."""
        others: dict[str, float] = {}

        def take_turns() -> None:
            for other in self._session.seeds.sample(self._beside, len(self._beside)):
                self._stage.show(batch)
                start = time.perf_counter()
                computed, _ = self._session.run_timed(other, batch)
                others[other] = computed - start

        with self._backend.timer_lease():
            if self._frozen is None:
                window = self._stage.window(self._peer, self._variant, batch)
            else:  # last, since what it leaves is verified now
                window = self._stage.frozen_window(self._peer, self._variant, batch, self._frozen, take_turns)
        return window, others

    def _pilot(self) -> float:
        """Rough seconds per iteration, to choose batch sizes by."""
        everything, one = list(range(self._stage.slots)), [0]
        runs = []
        for order in (one, everything):
            start = time.perf_counter()
            computed, _ = self._peer.run(stage="timing", variant=self._variant, order=order)
            runs.append(computed - start)
        return max(1e-7, (runs[1] - runs[0]) / (len(everything) - 1))

    def _verify(self, order: Sequence[int]) -> Agreement:
        if self._variant != "candidate":
            return NOTHING
        stage, session, settings = self._stage, self._session, self._settings
        if stage.mutated(order):
            raise RunnerFailed("mutated-input", "forward changed its input; Model leaves it as it is")
        total = NOTHING
        slack = 1.0 + session.eager_worst
        for slot in order:
            expected = session.answer(slot, "eager")
            for position, (got, want) in enumerate(zip(stage.private_outputs[slot], expected, strict=True)):
                allowance = Allowance(settings.atol * slack, settings.rtol * slack, 9 * session.eager_error)
                found = compare(got, want, allowance)
                if found.worst > 1 and self._is_exact(position):
                    # integers may differ from eager where eager differs from the oracle (ties)
                    oracle, eager, allowances = session.oracle_answer(slot, settings)
                    found = compare(got, oracle[position], allowances[position], eager[position])
                if found.worst > 1:
                    raise RunnerFailed(
                        "incorrect",
                        f"a timed iteration left a wrong output {found.detail}; untimed, the same code was right",
                    )
                total = total.merged(found)
        return total

    def _is_exact(self, position: int) -> bool:
        return not dtype_of(self._session.layout.outputs.specs[position].dtype).is_floating_point


def longer(inner: Sequence[Round], windows: Sequence[Round], copies: Sequence[Round]) -> list[Round]:
    """Round by round what a window took without its copies, and never less than what the runner admits."""
    return [
        Round(i.n1, max(i.t1, w.t1 - c.t1), i.n2, max(i.t2, w.t2 - c.t2))
        for i, w, c in zip(inner, windows, copies, strict=True)
    ]

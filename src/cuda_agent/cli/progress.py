"""Progress on stderr, for whatever takes over two seconds. On a pipe it is quiet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from cuda_agent.cli.console import stderr
from cuda_agent.report.meaning import milliseconds

if TYPE_CHECKING:
    from cuda_agent.optimize import Event


@contextmanager
def spinner(text: str) -> Iterator[None]:
    console = stderr()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        progress.add_task(escape(text), total=None)
        yield


class SearchProgress:
    """A bar for the search of one task after another; call it with each Event."""

    def __init__(self, budget_s: float, *, total: int = 1) -> None:
        self._console = stderr()
        self._budget_s = budget_s
        self._total = total
        self._started: list[str] = []
        self._tried = 0
        self.written = False
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._bar = self._progress.add_task("starting", total=None, note="")

    def __enter__(self) -> SearchProgress:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def __call__(self, event: Event) -> None:
        if event.kind == "capture":
            self._started.append(event.task.name)
            self._tried, self.written = 0, False
            self._show(event, "capturing", note="")
        elif event.kind == "search":
            self._show(event, "searching", note="")
        elif event.kind == "trial":
            self._tried += 1
            best = f"best {milliseconds(event.best.ms)} ms of {self._tried}" if event.best else f"{self._tried} tried"
            self._show(event, "searching", note=best)
        elif event.kind == "final":
            self._show(event, "final judgement", note="")
        elif event.kind == "written":
            self.written = True

    def _show(self, event: Event, phase: str, note: str) -> None:
        place = f"{len(self._started)}/{self._total} " if self._total > 1 else ""
        self._progress.update(
            self._bar,
            description=f"{place}{escape(event.task.name)}: {phase}",
            total=self._budget_s if phase == "searching" else None,
            completed=min(event.elapsed_s, self._budget_s),
            note=note,
        )

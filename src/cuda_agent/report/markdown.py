"""REPORT.md from a verdict and the search's history."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from cuda_agent.candidate import Candidate
from cuda_agent.judge.verdict import Verdict
from cuda_agent.report import meaning
from cuda_agent.task import Task

if TYPE_CHECKING:
    from cuda_agent.optimize import Trial

SHOWN = 30  # trials listed; the rest are counted


def render_report(task: Task, candidate: Candidate, verdict: Verdict, history: Sequence[Trial] = ()) -> str:
    """Markdown for people, of what `verdict.json` says for programs. Times in milliseconds per forward call."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("cuda_agent.report"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown, not HTML; `cell` takes care of tables
    )
    environment.filters["ms"] = meaning.milliseconds
    environment.filters["cell"] = _cell
    ranked = sorted(history, key=lambda trial: trial.ms)
    return environment.get_template("REPORT.md.jinja").render(
        task=task,
        verdict=verdict,
        reward=meaning.reward_in_words(verdict),
        status=meaning.STATUS[verdict.status],
        oracle=meaning.ORACLE.get(verdict.oracle or "", ""),
        precision=meaning.PRECISION.get(verdict.precision or "", ""),
        times=meaning.times_table(verdict),
        sources=_sources(candidate),
        schedule=_schedule(candidate),
        trials=ranked[:SHOWN],
        untold=max(0, len(ranked) - SHOWN),
        total=len(ranked),
        accepted=sum(trial.verdict.accepted for trial in ranked),
        search_s=max((trial.at_s for trial in history), default=0.0),
    )


def _sources(candidate: Candidate) -> list[tuple[str, int]]:
    """Kernel sources with their number of lines."""
    suffixes = (".cpp", ".cu", ".h", ".cuh")
    found = sorted(
        path for path in candidate.files if PurePosixPath(path).suffix in suffixes and "/.build/" not in path
    )
    return [(path, candidate.files[path].count(b"\n")) for path in found]


def _schedule(candidate: Candidate) -> dict[str, Any]:
    raw = candidate.files.get("kernels/schedule.json")
    return dict(json.loads(raw)) if raw is not None else {}


def _cell(text: str) -> str:
    """One line that cannot end a table cell."""
    line = " ".join(text.split()).replace("|", "\\|")
    return line if len(line) <= 120 else line[:119] + "…"

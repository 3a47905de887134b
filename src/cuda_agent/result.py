"""The folder that `optimize` leaves behind. It stands alone: torch and a compiler run it, without this package."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cuda_agent.candidate import Candidate
from cuda_agent.errors import CudaAgentError
from cuda_agent.judge.verdict import Verdict
from cuda_agent.report import render_report
from cuda_agent.task import Task

if TYPE_CHECKING:
    from cuda_agent.optimize import Trial

VERDICT, REPORT, TASK = "verdict.json", "REPORT.md", "model.py"


class OutputRefused(CudaAgentError):
    """Writing the result here would mix it with, or overwrite, something else."""

    status = "usage_error"


def is_result(folder: Path) -> bool:
    """Whether an earlier `optimize` wrote this folder."""
    return all((folder / name).is_file() for name in (VERDICT, REPORT, TASK, "model_new.py"))


def check_output(out: Path, *, force: bool = False) -> None:
    """Raise OutputRefused before any work is done if `out` cannot take a result."""
    if out.exists() and not out.is_dir():
        raise OutputRefused(f"{out}: is a file; name a folder with --out.")
    if out.is_dir() and any(out.iterdir()) and not is_result(out) and not force:
        raise OutputRefused(f"{out}: holds files that are no earlier result; choose another folder, or pass --force.")
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / f".writable-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise OutputRefused(f"{out}: cannot be written ({error.strerror}); choose another folder with --out.") from None


def write_result(out: Path, task: Task, candidate: Candidate, verdict: Verdict, history: Sequence[Trial]) -> None:
    """Write `model_new.py`, `ops.py`, `kernels/`, `model.py`, `verdict.json` and `REPORT.md` to `out`.

    An earlier result's kernels are removed first; other files that lie there are left alone. `verdict.json` comes
    last, so a folder that has one is whole.
    """
    out.mkdir(parents=True, exist_ok=True)
    if is_result(out):
        (out / VERDICT).unlink()
        shutil.rmtree(out / "kernels", ignore_errors=True)
    for path, content in candidate.files.items():
        _write(out / path, content)
    _write(out / TASK, task.source.encode())
    _write(out / REPORT, render_report(task, candidate, verdict, history).encode())
    _write(out / VERDICT, (verdict.model_dump_json(indent=2) + "\n").encode())


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(content)
    partial.replace(path)

"""Compiling foreign sources: confined, bounded, and once per content.

The store is content-addressed and only the judge writes it: `<store>/<key[:2]>/<key>/` holds `object` and
`record.json`, both read-only, put there by one rename. A source that does not compile is remembered like one that does;
a compiler that was stopped for its time or memory is not, since the next run may have more of either.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Literal

from filelock import FileLock

from cuda_agent.candidate.build_plan import BuildUnit
from cuda_agent.judge.ptxas import KernelResources, read_report
from cuda_agent.sandbox import Completed, Policy, spawn

Failure = Literal["failed", "timed_out", "memory"]

OUTPUT_BYTES = 1 << 20  # of a compiler's messages; a template error can fill a disk
OBJECT_BYTES = 512 << 20


@dataclass(frozen=True)
class Built:
    """What became of one unit. path: the shared object in the store, read-only; None if there is none.

    log: the compiler's messages, cut. seconds: of the compiler run, also when it ran long ago (`cached`).
    report: registers, stack and spills per kernel, CUDA only.
    """

    unit: BuildUnit
    path: Path | None
    log: str
    seconds: float
    cached: bool
    failure: Failure | None
    report: tuple[KernelResources, ...] = ()


class Builder:
    """Builds units, `jobs` at a time, each in a private folder inside the sandbox. Safe to share between threads, and
    the store between processes. hidden: paths that a compiler must not read (`#include`, `.incbin`)."""

    def __init__(
        self, store: Path, jobs: int = 2, memory_bytes: int = 4 << 30, processes: int = 64, hidden: Sequence[Path] = ()
    ) -> None:
        self.store = store = store.absolute()
        self._memory_bytes = memory_bytes
        self._processes = processes
        self._hidden = tuple(hidden)
        self._stop = os.eventfd(0)
        for name in ("building", "locks"):
            (store / name).mkdir(parents=True, exist_ok=True)
        self._pool = ThreadPoolExecutor(jobs, thread_name_prefix="build")

    def build(self, units: Sequence[BuildUnit], timeout_s: float) -> list[Built]:
        """One Built per unit, in order. timeout_s: wall time of each compiler run."""
        return list(self._pool.map(lambda unit: self._build(unit, timeout_s), units))

    @property
    def stop(self) -> int:
        """A descriptor that becomes readable when the builder is closed."""
        return self._stop

    def close(self) -> None:
        """End all compilers that run; what waits for them gets Stopped."""
        os.eventfd_write(self._stop, 1)
        self._pool.shutdown(cancel_futures=True)

    def __enter__(self) -> Builder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _build(self, unit: BuildUnit, timeout_s: float) -> Built:
        known = self._remembered(unit)
        if known is None:
            with FileLock(self.store / "locks" / f"{unit.key}.lock"):  # another process may be at it
                known = self._remembered(unit) or self._compile(unit, timeout_s)
        return known

    def _entry(self, unit: BuildUnit) -> Path:
        return self.store / unit.key[:2] / unit.key

    def _remembered(self, unit: BuildUnit) -> Built | None:
        entry = self._entry(unit)
        try:
            record = json.loads((entry / "record.json").read_text())
        except FileNotFoundError:
            return None
        return Built(
            unit=unit,
            path=entry / "object" if record["failure"] is None else None,
            log=record["log"],
            seconds=record["seconds"],
            cached=True,
            failure=record["failure"],
            report=tuple(KernelResources(**kernel) for kernel in record["report"]),
        )

    def _compile(self, unit: BuildUnit, timeout_s: float) -> Built:
        with tempfile.TemporaryDirectory(dir=self.store / "building", ignore_cleanup_errors=True) as scratch:
            folder = Path(scratch) / "source"
            for path, content in unit.files.items():
                target = folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
            (folder / ".tmp").mkdir()
            policy, env = self._policy(folder, timeout_s), _env(unit, folder)
            done = spawn(unit.argv, policy, cwd=folder, env=env, output_limit=OUTPUT_BYTES, stop=self._stop)
            built = Built(unit, None, done.output, done.seconds, False, _failure(done))
            if built.failure in ("timed_out", "memory"):
                return built
            if built.failure is None and not _plain_file(folder / unit.output):
                built = replace(built, failure="failed", log=f"{done.output}\nthe compiler left no {unit.output}")
            self._keep(built, folder / unit.output, Path(scratch) / "entry")
            known = self._remembered(unit)
            assert known is not None
            return replace(known, cached=False)

    def _policy(self, folder: Path, timeout_s: float) -> Policy:
        return Policy(
            memory_bytes=self._memory_bytes,
            processes=self._processes,
            file_bytes=OBJECT_BYTES,
            wall_s=timeout_s,
            writable=(folder,),
            hidden=self._hidden,
            address_space=True,
        )

    def _keep(self, built: Built, produced: Path, staged: Path) -> None:
        staged.mkdir()
        report = read_report(built.log) if built.failure is None else ()
        if built.failure is None:
            shutil.copyfile(produced, staged / "object", follow_symlinks=False)
            (staged / "object").chmod(0o444)
        record = {
            "name": built.unit.name,
            "argv": built.unit.argv,
            "failure": built.failure,
            "log": built.log,
            "seconds": built.seconds,
            "report": [asdict(kernel) for kernel in report],
        }
        (staged / "record.json").write_text(json.dumps(record))
        (staged / "record.json").chmod(0o444)
        entry = self._entry(built.unit)
        entry.parent.mkdir(exist_ok=True)
        os.rename(staged, entry)


def _env(unit: BuildUnit, folder: Path) -> dict[str, str]:
    path = os.environ.get("PATH", os.defpath)
    return {"PATH": path, "HOME": str(folder), "TMPDIR": str(folder / ".tmp"), "LC_ALL": "C.UTF-8", **unit.env}


def _failure(done: Completed) -> Failure | None:
    if done.timed_out:
        return "timed_out"
    if done.killed_for == "memory":
        return "memory"
    if done.returncode == 0:
        return None
    # The compiler driver outlives its killed child and exits like after any error.
    starved = ("out of memory", "virtual memory exhausted", "Killed signal terminated", "std::bad_alloc")
    return "memory" if any(sign in done.output for sign in starved) else "failed"


def _plain_file(path: Path) -> bool:
    """Whether it is a regular file of acceptable size: what lies there was written beside foreign code."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and 0 < status.st_size <= OBJECT_BYTES

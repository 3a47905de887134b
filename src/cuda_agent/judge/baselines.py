"""Baseline times on disk, by content: a baseline belongs to a task, a device, a torch and this protocol."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path

from cuda_agent.judge.verdict import Interval

PROTOCOL = 1  # raise when the way of timing changes


class Baselines:
    """found: `Interval`, or None where the variant fails on this task (torch.compile may)."""

    def __init__(self, folder: Path, device: str, versions: dict[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._machine = json.dumps([PROTOCOL, device, sorted(versions.items())])

    def read(self, task_key: str, variant: str) -> tuple[bool, Interval | None]:
        """(known, time)."""
        try:
            record = json.loads(self._path(task_key, variant).read_text())
        except FileNotFoundError:
            return False, None
        return True, None if record["time"] is None else Interval(**record["time"])

    def write(self, task_key: str, variant: str, time: Interval | None, why: str = "") -> None:
        record = {"task": task_key, "variant": variant, "machine": self._machine, "why": why}
        record["time"] = None if time is None else time.model_dump()  # type: ignore[assignment]
        with tempfile.NamedTemporaryFile("w", dir=self._folder, delete=False) as scratch:
            json.dump(record, scratch)
        os.replace(scratch.name, self._path(task_key, variant))

    def _path(self, task_key: str, variant: str) -> Path:
        name = hashlib.sha256(f"{task_key}\0{variant}\0{self._machine}".encode()).hexdigest()
        return self._folder / f"{name}.json"

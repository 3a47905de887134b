"""A task: a KernelBench-style source with `Model`, `get_inputs`, `get_init_inputs`. Nothing here runs it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path


@dataclass(frozen=True)
class Task:
    """name: short, file-system safe. source: the whole module. origin: where it came from, for messages."""

    name: str
    source: str
    origin: str

    @cached_property
    def key(self) -> str:
        return hashlib.sha256(self.source.encode()).hexdigest()


def load_task(ref: str | Path) -> Task:
    raise NotImplementedError


def load_tasks(ref: str | Path) -> list[Task]:
    raise NotImplementedError

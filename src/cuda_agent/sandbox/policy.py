"""What a confined process may use, and how far a machine can confine it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal

KilledFor = Literal["memory", "processes", "time"]


class Level(StrEnum):
    """How a process is confined, weakest first; what a machine reaches is found out, never assumed.

    NONE: nothing is promised (asked for with $CUDA_AGENT_SANDBOX=none); the limits are applied all the same.
    LIMITS: rlimits, own session, a watcher for memory, processes and time, no capabilities, no_new_privs. The process
        can still read and write what its user can, reach the network and signal that user's other processes.
    NAMESPACES: also its own user (unless root), PID, mount, network and IPC namespaces: no network, a read-only system,
        private /tmp, /var/tmp and /dev/shm, a minimal /dev, an empty /run, no other process in sight.
    """

    NONE = "none"
    LIMITS = "limits"
    NAMESPACES = "namespaces"

    @property
    def rank(self) -> int:
        return list(Level).index(self)


@dataclass(frozen=True)
class Policy:
    """Limits and visibility of one process tree.

    memory_bytes: anonymous plus shared memory of the whole tree; a memfd mapped by several of its processes counts
    once.
    processes: processes and threads of the tree together.
    file_bytes: RLIMIT_FSIZE; longest file (also memfd) it may write.
    wall_s: seconds until it is killed.
    writable: files and folders that stay writable, at their own paths. They must exist.
    readable: what must stay visible although it lies under a masked folder (/tmp, /run, …). The interpreter's own
        folders and the working directory always do.
    hidden: files and folders that are masked: a folder is seen empty, a file as /dev/null. Only what exists
        can be masked, and only at NAMESPACES.
    address_space: set RLIMIT_AS to memory_bytes, per process. Good for compilers; it breaks CUDA, which reserves
    terabytes.
    devices: keep /dev/nvidia* in the private /dev.
    """

    memory_bytes: int | None = None
    processes: int = 512
    file_bytes: int = 2 << 30
    wall_s: float | None = None
    writable: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()
    hidden: tuple[Path, ...] = ()
    address_space: bool = False
    devices: bool = False

    def require_paths(self) -> None:
        for path in self.writable:
            if not path.exists():
                raise FileNotFoundError(f"{path} is to stay writable but does not exist")

    def to_json(self) -> str:
        return json.dumps(asdict(self), default=os.fspath)

    @classmethod
    def from_json(cls, text: str) -> Policy:
        fields = json.loads(text)
        for name in ("writable", "readable", "hidden"):
            fields[name] = tuple(Path(path) for path in fields[name])
        return cls(**fields)

"""A confined process as others see it: a keeper's pid and a status pipe, both of which may have come over a socket."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cuda_agent.sandbox.policy import KilledFor, Level


def wait_readable(descriptors: Sequence[int], timeout_s: float | None) -> set[int]:
    """As select(2), for descriptors above 1023 too."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(None if timeout_s is None else max(timeout_s, 0) * 1000)}


@dataclass(frozen=True)
class Exit:
    """How it ended. code: exit status, None when killed. signal: number that ended it. killed_for: the limit it
    exceeded.

    error: confinement itself failed, nothing foreign ran. All None: its keeper died, or it was told to go.
    """

    code: int | None = None
    signal: int | None = None
    killed_for: KilledFor | None = None
    error: str | None = None


class Child:
    """A confined process tree. Build one from a received (pid, status_fd) pair in any process of the same PID
    namespace.

    The status pipe is read from a single place: use one Child per process tree.
    """

    def __init__(self, pid: int, status_fd: int) -> None:
        self.pid, self.status_fd = pid, status_fd
        self.level: Level | None = None
        self.gaps: list[str] = []
        self.exit: Exit | None = None
        self._buffer = b""
        os.set_blocking(status_fd, False)

    def fileno(self) -> int:
        """Readable when the status changes; then call `poll()`."""
        return self.status_fd

    def poll(self) -> Exit | None:
        """Take in what has been reported; never blocks. Returns how it ended, None while it runs."""
        while self.exit is None:
            try:
                chunk = os.read(self.status_fd, 65536)
            except BlockingIOError:
                break
            self._buffer += chunk
            *lines, self._buffer = self._buffer.split(b"\n")
            for line in lines:
                self._take(json.loads(line))
            if not chunk and self.exit is None:
                self.exit = Exit()
        return self.exit

    def _take(self, fields: dict[str, Any]) -> None:
        if "level" in fields:
            self.level, self.gaps = Level(fields["level"]), fields["gaps"]
        elif "error" in fields:
            self.exit = Exit(error=fields["error"])
        elif self.exit is None:
            self.exit = Exit(fields["exit"], fields["signal"], fields["killed_for"])

    def wait(self, timeout: float | None = None) -> Exit | None:
        """Wait for the end; None after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return None
            wait_readable([self.status_fd], left)
        return self.exit

    def wait_level(self, timeout: float | None = None) -> Level | None:
        """Wait until the level is known; None after `timeout` seconds or where it ended before."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None and self.level is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return None
            wait_readable([self.status_fd], left)
        return self.level

    def kill(self) -> None:
        """End the whole tree. It may be called again."""
        kill_tree(self.pid)

    def close(self) -> None:
        """Forget the status pipe. Does not end the process."""
        if self.status_fd >= 0:
            os.close(self.status_fd)
            self.status_fd = -1


def kill_tree(pid: int, patience_s: float = 2.0) -> None:
    """End a keeper and all it keeps; returns when the keeper is gone.

    Asks first (SIGTERM), since where there is no PID namespace only the keeper can find all of its descendants.
    SIGKILL to the keeper is enough at Level.NAMESPACES.
    """
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, number)
            if wait_readable([handle], patience_s):
                return
    finally:
        os.close(handle)

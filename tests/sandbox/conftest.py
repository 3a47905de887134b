from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from cuda_agent.sandbox import Child, Exit, Level, Policy, available_level, fork_confined

needs_namespaces = pytest.mark.skipif(
    available_level() is not Level.NAMESPACES, reason="this machine does not allow namespaces"
)
LEVELS = [pytest.param(Level.NAMESPACES, marks=needs_namespaces), Level.LIMITS]


@dataclass(frozen=True)
class Outcome:
    exit: Exit
    output: str
    child: Child


def start(
    main: Callable[[], None], policy: Policy | None = None, level: Level | None = None, keep: tuple[int, ...] = ()
) -> tuple[Child, int]:
    """The child and the descriptor of its output."""
    read, write = os.pipe()
    child = fork_confined(main, policy or Policy(), close_fds_except=keep, output_fd=write, level=level)
    os.close(write)
    return child, read


def finish(child: Child, output_fd: int) -> Outcome:
    chunks: list[bytes] = []

    def drain() -> None:
        with open(output_fd, "rb") as pipe:
            chunks.append(pipe.read())

    reader = threading.Thread(target=drain)
    reader.start()
    ended = child.wait(60)
    os.waitpid(child.pid, 0)
    reader.join()
    child.close()
    assert ended is not None
    return Outcome(ended, b"".join(chunks).decode(), child)


def run_confined(
    main: Callable[[], None], policy: Policy | None = None, level: Level | None = None, keep: tuple[int, ...] = ()
) -> Outcome:
    return finish(*start(main, policy, level, keep))

"""How far this machine can confine a process: tried once, by doing it."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from cuda_agent.sandbox import linux
from cuda_agent.sandbox.mounts import build_view
from cuda_agent.sandbox.policy import Level, Policy

LEVEL_VARIABLE = "CUDA_AGENT_SANDBOX"  # caps the level: none, limits, namespaces


def enter_namespaces() -> None:
    """Put this process's next child into a new PID namespace.

    Root needs no user namespace for it and gets none: device nodes keep opening as outside.
    """
    if linux.can_administer():
        linux.unshare(linux.CLONE_NEWPID)
        return
    uid, gid = os.geteuid(), os.getegid()
    linux.unshare(linux.CLONE_NEWUSER | linux.CLONE_NEWPID)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def try_namespaces() -> str | None:
    """Why this machine cannot give `Level.NAMESPACES`, from a forked attempt; None: it can.

    Single-threaded callers only.
    """
    read, write = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            enter_namespaces()
            init = os.fork()
            if init:
                os._exit(os.waitstatus_to_exitcode(os.waitpid(init, 0)[1]))
            linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWNET | linux.CLONE_NEWIPC)
            build_view(Policy(), None)
            os._exit(0)
        except OSError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(1)
    os.close(write)
    with open(read, "rb") as pipe:
        reason = pipe.read().decode()
    try:
        _, state = os.waitpid(pid, 0)
    except ChildProcessError:  # the caller ignores SIGCHLD
        return reason or None
    return None if state == 0 else reason or "the attempt died"


def level_cap() -> Level:
    return Level(os.environ.get(LEVEL_VARIABLE) or Level.NAMESPACES)


@functools.cache
def _tried() -> bool:
    return try_namespaces() is None


def available_level() -> Level:
    """The strongest level here, no stronger than $CUDA_AGENT_SANDBOX. Tried once a process.

    Single-threaded callers only.
    """
    cap = level_cap()
    if cap is Level.NAMESPACES and not _tried():
        return Level.LIMITS
    return cap

"""The last steps of confinement, taken by the process itself just before foreign code runs in it."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Collection
from pathlib import Path

from cuda_agent.sandbox import linux
from cuda_agent.sandbox.policy import Policy

_OPEN_FILES = 4096


def close_all_fds(keep: Collection[int]) -> None:
    """Close every descriptor but 0, 1, 2 and `keep`."""
    previous = 2
    for descriptor in sorted({fd for fd in keep if fd > 2}):
        linux.close_range(previous + 1, descriptor - 1)
        previous = descriptor
    linux.close_range(previous + 1, linux.LAST_DESCRIPTOR)


def redirect(output_fd: int | None) -> None:
    """stdin from /dev/null; stdout and stderr to `output_fd`, or to /dev/null as well."""
    null = os.open("/dev/null", os.O_RDWR)
    target = null if output_fd is None else output_fd
    for source, standard in ((null, 0), (target, 1), (target, 2)):
        os.dup2(source, standard)
    if null > 2:
        os.close(null)
    # Whatever these were before (a test runner's capture, a closed file), they are the standard descriptors now.
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", buffering=1, errors="replace", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="replace", closefd=False)


def reset_signals() -> None:
    """Python's own start-up state: default handlers, an empty mask, SIGPIPE and SIGXFSZ as exceptions."""
    ignored = (signal.SIGPIPE, signal.SIGXFSZ)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def confine_self(policy: Policy, keep: Collection[int], output_fd: int, cwd: Path | None) -> None:
    """Own session, rlimits, descriptors, working directory, no capabilities, no_new_privs."""
    os.setsid()
    redirect(output_fd)
    close_all_fds(keep)
    if cwd is None or not cwd.is_dir():
        cwd = Path("/")
    os.chdir(cwd)  # by name: the old handle would still reach below what was mounted over it
    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: policy.file_bytes, resource.RLIMIT_NOFILE: _OPEN_FILES}
    if policy.address_space and policy.memory_bytes is not None:
        limits[resource.RLIMIT_AS] = policy.memory_bytes
    for name, value in limits.items():
        _, hard = resource.getrlimit(name)
        allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(name, (allowed, allowed))
    linux.drop_capabilities()
    linux.set_no_new_privileges()
    reset_signals()

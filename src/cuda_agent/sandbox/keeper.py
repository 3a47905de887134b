"""Forking confined processes: a keeper outside, an init inside, and the foreign process below it.

    caller ── keeper ── init (PID 1 of the new namespace) ── foreign process ── whatever it starts

The init is ours because PID 1 cannot be killed or traced from inside, so foreign code can neither stop the watch nor
outlive it: when the keeper dies the kernel kills the init (PR_SET_PDEATHSIG), and with it the whole namespace. Where
PID namespaces are not allowed (`Level.LIMITS`) there is no init; the keeper adopts orphans (PR_SET_CHILD_SUBREAPER)
and hunts its descendants down. What remains there: foreign code of the same user can kill its keeper, and a daemon of
such code then outlives it until `kill_tree` or the end of the session.

Each side reports one JSON line on the status pipe: `{"level": …, "gaps": […]}`, then
`{"exit": code or null, "signal": number or null, "killed_for": "memory" | "processes" | "time" | null}`; `{"error": …}`
where confinement itself failed and nothing ran.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from cuda_agent.sandbox import linux
from cuda_agent.sandbox.child import Child
from cuda_agent.sandbox.confine import close_all_fds, confine_self, redirect
from cuda_agent.sandbox.mounts import build_view
from cuda_agent.sandbox.policy import KilledFor, Level, Policy
from cuda_agent.sandbox.support import available_level, enter_namespaces
from cuda_agent.sandbox.watch import Watcher

_WATCHED = (signal.SIGCHLD, signal.SIGTERM)
_SETUP_FAILED = 125


def fork_confined(
    main: Callable[[], None],
    policy: Policy,
    *,
    close_fds_except: Sequence[int],
    output_fd: int,
    level: Level | None = None,
) -> Child:
    """Fork a confined process that runs `main()` and then ends with status 0 (1 after an uncaught exception).

    Call it in a single-threaded process. close_fds_except: descriptors the child keeps, at the same numbers.
    output_fd: its stdout and stderr. level: no more than this one; default what the machine offers
    (`available_level`). The caller reaps `Child.pid` (the keeper), or ignores SIGCHLD. Never raises for lack of
    isolation: the level reached is in the status. Raises FileNotFoundError for a missing writable path.
    """
    policy.require_paths()
    chosen = min(level or Level.NAMESPACES, available_level(), key=lambda item: item.rank)
    status_read, status_write = os.pipe2(os.O_CLOEXEC)
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(status_read)
        keep_child(main, policy, chosen, parent, status_write, close_fds_except, output_fd, _current_folder())
    os.close(status_write)
    return Child(pid, status_read)


def _current_folder() -> Path | None:
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def keep_child(
    main: Callable[[], None],
    policy: Policy,
    level: Level,
    parent: int,
    status: int,
    keep: Collection[int],
    output_fd: int,
    cwd: Path | None,
) -> NoReturn:
    """Be the keeper of one confined process; never returns. The caller has just been forked or started for this."""
    code = _SETUP_FAILED
    try:
        code = _keeper(main, policy, level, parent, status, keep, output_fd, cwd)
    except BaseException:
        report(status, error=traceback.format_exc(limit=-3).strip())
    finally:
        os._exit(code)


def report(status: int, **fields: Any) -> None:
    with suppress(OSError):  # nobody listens any more
        os.write(status, (json.dumps(fields) + "\n").encode())


def _keeper(
    main: Callable[[], None],
    policy: Policy,
    level: Level,
    parent: int,
    status: int,
    keep: Collection[int],
    output_fd: int,
    cwd: Path | None,
) -> int:
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)  # Ctrl-C is the caller's to handle
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    linux.set_parent_death_signal(signal.SIGTERM)
    if os.getppid() != parent:
        return 0
    with suppress(OSError):  # the kernel's out-of-memory killer shall take this tree before ours
        Path("/proc/self/oom_score_adj").write_text("800")
    if level is not Level.NAMESPACES:
        return _limits_only(main, policy, level, status, keep, output_fd, cwd)

    enter_namespaces()
    init = os.fork()
    if init == 0:
        try:
            code = _init(main, policy, status, keep, output_fd, cwd)
        except BaseException:
            report(status, error=traceback.format_exc(limit=-3).strip())
            code = _SETUP_FAILED
        os._exit(code)
    redirect(None)
    close_all_fds((status,))
    while True:
        if signal.sigwait(_WATCHED) == signal.SIGTERM:
            os.kill(init, signal.SIGKILL)
            os.waitpid(init, 0)
            return 0
        pid, state = os.waitpid(init, os.WNOHANG)
        if pid == init:
            if os.WIFSIGNALED(state):  # by the kernel, out of memory
                report(status, exit=None, signal=os.WTERMSIG(state), killed_for=None)
            return 0


def _init(
    main: Callable[[], None],
    policy: Policy,
    status: int,
    keep: Collection[int],
    output_fd: int,
    cwd: Path | None,
) -> int:
    """PID 1 of the namespace. Of the signals that come from inside it takes notice of SIGCHLD alone."""
    signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGCHLD})
    linux.die_with_parent()
    linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWNET | linux.CLONE_NEWIPC)
    gaps = build_view(policy, cwd)
    report(status, level=Level.NAMESPACES, gaps=gaps)
    child = _fork_foreign(main, policy, keep, output_fd, cwd)
    redirect(None)
    os.chdir("/")
    close_all_fds((status,))
    fresh_proc = os.path.exists("/proc/1/status") and os.readlink("/proc/self") == "1"
    watcher = Watcher(policy, None if fresh_proc else int(os.readlink("/proc/self")))
    state, killed_for = _watch(child, watcher, lambda: os.kill(-1, signal.SIGKILL))
    _report_end(status, state, killed_for)
    return 0


def _limits_only(
    main: Callable[[], None],
    policy: Policy,
    level: Level,
    status: int,
    keep: Collection[int],
    output_fd: int,
    cwd: Path | None,
) -> int:
    linux.become_subreaper()
    report(status, level=level, gaps=[])
    child = _fork_foreign(main, policy, keep, output_fd, cwd)
    redirect(None)
    close_all_fds((status,))
    watcher = Watcher(policy, os.getpid())
    state, killed_for = _watch(child, watcher, lambda: _kill_all(watcher))
    _kill_all(watcher)
    _report_end(status, state, killed_for)
    return 0


def _fork_foreign(
    main: Callable[[], None], policy: Policy, keep: Collection[int], output_fd: int, cwd: Path | None
) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        linux.die_with_parent()
        confine_self(policy, keep, output_fd, cwd)
        main()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _watch(child: int, watcher: Watcher, kill: Callable[[], None]) -> tuple[int | None, KilledFor | None]:
    """Wait for the child's end, reaping orphans.

    Returns its wait status (None: the tree was told to go) and why it was killed here.
    """
    killed_for: KilledFor | None = None
    listened = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    while True:
        event = signal.sigtimedwait(listened, watcher.poll_s if killed_for is None else 1.0)
        if event is not None and event.si_signo == signal.SIGTERM:
            kill()
            return None, None
        while True:
            try:
                pid, state = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return None, killed_for
            if pid == 0:
                break
            if pid == child:
                return state, killed_for
        if killed_for is None:
            killed_for = watcher.excess()
        if killed_for is not None:
            kill()


def _kill_all(watcher: Watcher) -> None:
    """Stop every descendant before killing it, so that none forks meanwhile; again until none is left."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        members = [pid for pid, status in watcher.members() if status["Threads"]]
        if not members:
            return
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in members:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
        time.sleep(0.002)


def _report_end(status: int, state: int | None, killed_for: KilledFor | None) -> None:
    code = None if state is None or not os.WIFEXITED(state) else os.WEXITSTATUS(state)
    number = None if state is None or not os.WIFSIGNALED(state) else os.WTERMSIG(state)
    report(status, exit=code, signal=number, killed_for=killed_for)

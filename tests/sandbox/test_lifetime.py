"""Nothing outlives its keeper, whoever dies first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from cuda_agent.sandbox import Child, Level, Policy, kill_tree

from .conftest import LEVELS, finish, needs_namespaces, start

LOCK = "beat"


def daemonise_and_beat(folder: Path) -> None:
    """A daemon that forks twice, leaves the session, ignores signals, and writes the time as long as it lives."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            while True:
                (folder / LOCK).write_text(str(time.monotonic()))
                time.sleep(0.01)
        os._exit(0)
    os.wait()


def wait_for_beat(folder: Path) -> None:
    deadline = time.monotonic() + 20
    while not (folder / LOCK).exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_beating(folder: Path) -> bool:
    time.sleep(0.1)
    before = (folder / LOCK).read_text()
    time.sleep(0.2)
    return (folder / LOCK).read_text() != before


@pytest.mark.parametrize("level", LEVELS)
def test_daemon_dies_with_its_process(tmp_path: Path, level: Level) -> None:
    def main() -> None:
        daemonise_and_beat(tmp_path)
        time.sleep(0.3)

    outcome = finish(*start(main, Policy(writable=(tmp_path,)), level))
    assert outcome.exit.code == 0, outcome.output
    assert not is_beating(tmp_path)


@pytest.mark.parametrize("level", LEVELS)
def test_kill_tree_ends_daemons(tmp_path: Path, level: Level) -> None:
    def main() -> None:
        daemonise_and_beat(tmp_path)
        time.sleep(60)

    child, output = start(main, Policy(writable=(tmp_path,)), level)
    wait_for_beat(tmp_path)
    kill_tree(child.pid)
    assert not is_beating(tmp_path)
    finish(child, output)
    kill_tree(child.pid)  # gone already: no error


@needs_namespaces
def test_killing_the_keeper_is_enough(tmp_path: Path) -> None:
    def main() -> None:
        daemonise_and_beat(tmp_path)
        time.sleep(60)

    child, output = start(main, Policy(writable=(tmp_path,)))
    wait_for_beat(tmp_path)
    os.kill(child.pid, signal.SIGKILL)
    outcome = finish(child, output)
    assert (outcome.exit.code, outcome.exit.signal, outcome.exit.killed_for) == (None, None, None)
    assert not is_beating(tmp_path)


@pytest.mark.parametrize("level", LEVELS)
def test_all_dies_with_the_caller(tmp_path: Path, level: Level) -> None:
    program = f"""
        import os, sys, time
        from pathlib import Path
        sys.path.insert(0, {str(Path(__file__).parents[2])!r})
        from cuda_agent.sandbox import Level, Policy, fork_confined
        from tests.sandbox.test_lifetime import daemonise_and_beat
        folder = Path({str(tmp_path)!r})
        def main():
            daemonise_and_beat(folder)
            time.sleep(60)
        fork_confined(main, Policy(writable=(folder,)), close_fds_except=(), output_fd=2, level=Level({level.value!r}))
        time.sleep(60)
    """
    caller = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)])
    wait_for_beat(tmp_path)
    caller.kill()
    caller.wait()
    assert not is_beating(tmp_path)


def test_a_process_that_only_got_pid_and_descriptor_can_follow_and_kill() -> None:
    child, output = start(lambda: time.sleep(60))
    elsewhere = Child(child.pid, os.dup(child.status_fd))
    assert elsewhere.wait_level(20) is not None
    assert elsewhere.wait(0.05) is None
    elsewhere.kill()
    assert finish(elsewhere, output).exit.code is None


def test_ordinary_user(tmp_path: Path) -> None:
    """Confinement of a process without any privilege: by a user namespace, or by limits where that is forbidden."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody else; elsewhere the other tests run as an ordinary user already")
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _as_nobody(write)
        finally:
            os._exit(1)
    os.close(write)
    with open(read) as pipe:
        report = pipe.read()
    assert os.waitpid(pid, 0)[1] == 0, report
    level, uid, etc, network = report.split("\n")[:4]
    assert level in (Level.NAMESPACES, Level.LIMITS)
    assert uid == "65534"
    assert etc == "PermissionError" or (level == Level.NAMESPACES and etc == "OSError")
    if level == Level.NAMESPACES:
        assert network == "1"


def _as_nobody(report: int) -> None:
    import ctypes

    from cuda_agent.sandbox import support

    os.chdir("/")
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: as after the execve that usually follows setuid
    support._tried.cache_clear()

    def main() -> None:
        print(os.getuid())
        try:
            os.close(os.open("/etc/probe", os.O_WRONLY | os.O_CREAT))
        except OSError as error:
            print(type(error).__name__)
        print(len(Path("/proc/net/dev").read_text().splitlines()) - 2)

    child, output = start(main, Policy(wall_s=20))
    outcome = finish(child, output)
    os.write(report, f"{outcome.child.level}\n{outcome.output}{outcome.exit}".encode())
    os._exit(0)

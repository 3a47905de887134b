"""What a process confined by namespaces can see and reach."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from cuda_agent.sandbox import Level, Policy, linux

from .conftest import needs_namespaces, run_confined

pytestmark = needs_namespaces


def refused(action: object) -> str:
    """The name of the error that `action()` raises, `allowed` if none."""
    try:
        action()  # type: ignore[operator]
    except OSError as error:
        return os.strerror(error.errno or 0)
    return "allowed"


def test_network_is_unreachable() -> None:
    def main() -> None:
        print(refused(lambda: socket.create_connection(("127.0.0.1", port), timeout=2)))
        print(refused(lambda: socket.create_connection(("192.0.2.1", 80), timeout=2)))

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        outcome = run_confined(main)
    assert outcome.output.count("Network is unreachable") == 2
    assert outcome.child.level is Level.NAMESPACES


def test_abstract_sockets_of_the_host_are_out_of_reach() -> None:
    name = f"\0cuda-agent-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        outcome = run_confined(lambda: print(refused(lambda: socket.socket(socket.AF_UNIX).connect(name))))
    assert "Connection refused" in outcome.output


def test_system_is_read_only(tmp_path: Path) -> None:
    targets = ["/probe", "/etc/probe", str(Path.home() / "probe"), "/run/probe", "/dev/probe"]

    def main() -> None:
        for target in targets:
            print(target, refused(lambda target=target: os.close(os.open(target, os.O_WRONLY | os.O_CREAT))))

    outcome = run_confined(main)
    assert "allowed" not in outcome.output
    assert len(outcome.output.splitlines()) == len(targets)


def test_scratch_folders_are_private(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("outside")

    def main() -> None:
        for folder in ("/tmp", "/var/tmp", "/dev/shm"):
            print(folder, (Path(folder) / "mine").write_text("x"))
        print((tmp_path / "secret").exists())

    assert run_confined(main).output.split() == ["/tmp", "1", "/var/tmp", "1", "/dev/shm", "1", "False"]
    assert not any((Path(folder) / "mine").exists() for folder in ("/tmp", "/var/tmp", "/dev/shm"))


def test_writable_stays_writable_and_readable_stays_readable(tmp_path: Path) -> None:
    work, given, data = tmp_path / "work", tmp_path / "given", tmp_path / "one.txt"
    work.mkdir()
    given.mkdir()
    (given / "source").write_text("text")
    data.write_text("old")

    def main() -> None:
        (work / "result").write_text("made inside")
        data.write_text("new")
        print((given / "source").read_text(), refused(lambda: (given / "source").write_text("x")))

    policy = Policy(writable=(work, data), readable=(given,))
    assert run_confined(main, policy).output.split("\n")[0] == "text Read-only file system"
    assert (work / "result").read_text() == "made inside"
    assert data.read_text() == "new"


def test_hidden_is_masked_even_inside_what_is_kept(tmp_path: Path) -> None:
    cache, work = tmp_path / "kept" / "cache", tmp_path / "kept" / "cache" / "job"
    work.mkdir(parents=True)
    (cache / "secret").write_text("secret")
    token = tmp_path / "kept" / "token"
    token.write_text("secret")

    def main() -> None:
        print(sorted(os.listdir(cache)), repr(token.read_text()))
        (work / "result").write_text("fine")
        print(refused(lambda: (cache / "forged").write_text("x")))

    policy = Policy(hidden=(cache, token), readable=(tmp_path / "kept",), writable=(work,))
    assert run_confined(main, policy).output.splitlines() == ["['job'] ''", "Read-only file system"]
    assert (work / "result").read_text() == "fine"
    assert (cache / "secret").read_text() == "secret"


def test_masks_cannot_be_taken_off(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    libc = ctypes.CDLL(None, use_errno=True)

    def main() -> None:
        print(libc.umount2(os.fsencode(tmp_path), 2), libc.mount(None, b"/", None, 32 | 4096, None))
        if libc.unshare(0x10000000 | 0x20000) == 0:  # a user and a mount namespace of its own
            print(libc.umount2(os.fsencode(tmp_path), 2), libc.mount(None, b"/", None, 32 | 4096, None))
        print("secret" in os.listdir(tmp_path))

    lines = run_confined(main, Policy(hidden=(tmp_path,), readable=(tmp_path.parent,))).output.splitlines()
    assert lines[0] == "-1 -1"
    assert set(lines[:-1]) == {"-1 -1"}
    assert lines[-1] == "False"


def test_other_processes_are_out_of_sight() -> None:
    outside = os.getpid()

    def main() -> None:
        pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
        print(pids, os.getpid(), refused(lambda: os.kill(outside + 10**5, 0)))

    outcome = run_confined(main)
    if outcome.child.gaps:
        pytest.skip(outcome.child.gaps[0])
    assert outcome.output == "[1, 2] 2 No such process\n"


def test_init_can_be_neither_killed_nor_read() -> None:
    def main() -> None:
        for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP):
            os.kill(1, number)
        print(
            refused(lambda: os.readlink("/proc/1/fd/0")), refused(lambda: os.close(os.open("/proc/1/mem", os.O_RDONLY)))
        )

    outcome = run_confined(main)
    assert outcome.exit.code == 0
    assert outcome.output.count("Permission denied") == 2


def test_no_capability_and_no_new_privileges() -> None:
    outcome = run_confined(lambda: print(Path("/proc/self/status").read_text()))
    fields = dict(line.split(":\t", 1) for line in outcome.output.splitlines() if ":\t" in line)
    assert {fields[name].strip("0") for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {""}
    assert fields["NoNewPrivs"] == "1"


def test_kernel_settings_and_disks_are_out_of_reach() -> None:
    def main() -> None:
        print(refused(lambda: os.close(os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY | os.O_CREAT))))
        print(sorted(os.listdir("/dev")))

    first, devices = run_confined(main).output.splitlines()
    assert first != "allowed"
    assert not any(name in devices for name in ("sda", "vda", "nvme", "mem", "kvm", "kmsg"))


def test_memfds_cross_in_both_directions() -> None:
    ours, theirs = socket.socketpair()

    def main() -> None:
        _, descriptors, _, _ = socket.recv_fds(theirs, 1, 1)
        with mmap.mmap(descriptors[0], 4096) as view:
            view[:5] = view[:5].upper()
        answer = os.memfd_create("answer")
        os.write(answer, b"from inside")
        socket.send_fds(theirs, [b"x"], [answer])

    arena = os.memfd_create("arena")
    os.write(arena, b"hello".ljust(4096, b"\0"))
    socket.send_fds(ours, [b"x"], [arena])
    outcome = run_confined(main, keep=(theirs.fileno(),))
    assert outcome.exit.code == 0, outcome.output
    assert os.pread(arena, 5, 0) == b"HELLO"
    _, (answer,), _, _ = socket.recv_fds(ours, 1, 1)
    assert os.pread(answer, 11, 0) == b"from inside"


def test_where_the_kernel_refuses_a_fresh_proc_the_gap_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in containers that mask parts of /proc. The watch must work there too."""
    mount = linux.mount

    def refusing(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
        if kind == "proc":
            raise PermissionError(errno.EPERM, "Operation not permitted")
        mount(source, target, kind, flags, options)

    monkeypatch.setattr(linux, "mount", refusing)

    def main() -> None:
        while True:
            if os.fork() == 0:
                time.sleep(60)

    outcome = run_confined(main, Policy(processes=50, wall_s=30))
    assert outcome.exit.killed_for == "processes"
    assert outcome.child.level is Level.NAMESPACES
    assert "fresh /proc" in outcome.child.gaps[0]


def test_before_linux_5_12_each_mount_is_remounted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(linux, "set_read_only", missing)

    def main() -> None:
        for target in ("/etc/probe", "/run/probe", "/dev/probe", "/tmp/probe", f"{tmp_path}/probe"):
            print(refused(lambda target=target: os.close(os.open(target, os.O_WRONLY | os.O_CREAT))))

    lines = run_confined(main, Policy(writable=(tmp_path,))).output.splitlines()
    assert lines == ["Read-only file system"] * 3 + ["allowed"] * 2


def test_a_missing_writable_path_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist"):
        run_confined(lambda: None, Policy(writable=(tmp_path / "none",)))

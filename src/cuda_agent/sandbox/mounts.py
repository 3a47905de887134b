"""The file system a confined process sees: the system read-only, scratch folders private, devices few."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from cuda_agent.sandbox import linux
from cuda_agent.sandbox.policy import Policy

_SCRATCH = ("/tmp", "/var/tmp", "/dev/shm")
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
# Settings of the whole kernel in /proc, which root may write even without capabilities.
_KERNEL_FILES = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/acpi", "/proc/scsi")
_RUN = "/run"  # sockets of daemons: connecting to one needs no writable file system


def _device_nodes(with_gpu: bool) -> Iterator[Path]:
    for name in _DEVICES:
        yield Path("/dev") / name
    if with_gpu:
        for entry in (*Path("/dev").glob("nvidia*"), Path("/dev/dxg")):  # dxg: WSL
            yield from (entry.iterdir() if entry.is_dir() else (entry,))


def _interpreter_paths() -> Iterator[Path]:
    """What Python may still import lazily after the fork."""
    for text in (sys.prefix, sys.base_prefix, *sys.path, str(Path(__file__).parents[2])):
        path = Path(text)
        if text and path.is_absolute() and path.exists():
            yield path


def _below(path: Path, folders: list[str]) -> bool:
    return any(path.is_relative_to(folder) and str(path) != folder for folder in folders)


class _Kept:
    """A path held open, so that it can be bound again after something was mounted over it."""

    def __init__(self, path: Path, writable: bool) -> None:
        self.path, self.writable = path, writable
        self.descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        self.is_folder = stat.S_ISDIR(os.fstat(self.descriptor).st_mode)

    def bind(self) -> None:
        if not self.path.exists():
            _create(self.path, self.is_folder)
        linux.mount(f"/proc/self/fd/{self.descriptor}", str(self.path), None, linux.MS_BIND | linux.MS_REC)
        os.close(self.descriptor)


def _create(path: Path, folder: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if folder:
        path.mkdir(exist_ok=True)
    else:
        path.touch()


def build_view(policy: Policy, cwd: Path | None) -> list[str]:
    """Mount the confined view; call it inside a new mount namespace.

    Returns what could not be had but does not open a hole (today: a fresh /proc). Raises OSError where the view would
    have a hole, for the caller to stop.
    """
    linux.mount(None, "/", None, linux.MS_REC | linux.MS_PRIVATE)
    scratch = sorted({os.path.realpath(path) for path in _SCRATCH if os.path.isdir(path)})
    masked = [path for path in dict.fromkeys([*scratch, os.path.realpath(_RUN)]) if os.path.isdir(path)]
    hidden = [path.resolve() for path in policy.hidden if path.exists()]
    kept = _kept_paths(policy, [*masked, *map(str, hidden)], cwd)
    nodes = [_Kept(node, True) for node in _device_nodes(policy.devices) if node.exists()]

    size = f"size={max(policy.memory_bytes // 4, 1 << 20)}" if policy.memory_bytes else "size=50%"
    plain = linux.MS_NOSUID | linux.MS_NODEV
    # Hidden first: a kept folder is bound with the masks inside it.
    for secret in hidden:
        if secret.is_dir():
            linux.mount("tmpfs", str(secret), "tmpfs", plain, "mode=755,size=1m")
        else:
            linux.mount("/dev/null", str(secret), None, linux.MS_BIND)
    linux.mount("tmpfs", "/dev", "tmpfs", linux.MS_NOSUID | linux.MS_NOEXEC, "mode=755,size=64k")
    for name, target in {"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"}.items():
        os.symlink(f"/proc/self/fd{target}", f"/dev/{name}")
    os.mkdir("/dev/shm")
    for path in masked:
        if path == os.path.realpath(_RUN):
            linux.mount("tmpfs", path, "tmpfs", plain, "mode=755,size=1m")
        else:
            linux.mount("tmpfs", path, "tmpfs", plain, f"mode=1777,{size}")
    for node in nodes:
        node.bind()
    for entry in kept:
        entry.bind()

    gaps = []
    try:
        linux.mount("proc", "/proc", "proc", plain | linux.MS_NOEXEC)
    except OSError as error:
        gaps.append(f"fresh /proc ({error.strerror}): other processes' names stay visible")
        own_proc = []
    else:
        own_proc = ["/proc"]  # of its own processes; CUDA does not start where that is read-only
        for path in filter(os.path.exists, _KERNEL_FILES):
            linux.mount(path, path, None, linux.MS_BIND)
    _make_read_only([*scratch, *own_proc, *(str(entry.path) for entry in kept if entry.writable)])
    return gaps


def _kept_paths(policy: Policy, masked: list[str], cwd: Path | None) -> list[_Kept]:
    writable = {path.resolve() for path in policy.writable if path.exists()}
    wanted = [*policy.readable, *_interpreter_paths(), *([cwd] if cwd else [])]
    readable = {path.resolve() for path in wanted if path.exists() and _below(path.resolve(), masked)}
    hidden = [path.resolve() for path in policy.hidden]
    readable = {path for path in readable if path not in hidden} - writable
    # Parents first, so that a writable folder inside a readable one is bound over it.
    return [_Kept(path, path in writable) for path in sorted(writable | readable, key=lambda path: len(path.parts))]


def _make_read_only(except_for: list[str]) -> None:
    try:
        linux.set_read_only("/", True, recursive=True)
    except OSError:
        _remount_all_read_only(set(except_for))  # before Linux 5.12
        return
    for path in except_for:
        linux.set_read_only(path, False)


def _remount_all_read_only(except_for: set[str]) -> None:
    flags = {"nosuid": linux.MS_NOSUID, "nodev": linux.MS_NODEV, "noexec": linux.MS_NOEXEC, "noatime": linux.MS_NOATIME,
             "nodiratime": linux.MS_NODIRATIME, "relatime": linux.MS_RELATIME}  # fmt: skip
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split(" ")
        target = fields[4].encode().decode("unicode_escape")
        options = fields[5].split(",")
        if target in except_for or "ro" in options:
            continue
        kept = sum(flags.get(option, 0) for option in options)
        try:
            linux.mount(None, target, None, linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | kept)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EINVAL):  # these two: covered by another mount, out of reach
                raise

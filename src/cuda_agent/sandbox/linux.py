"""The few Linux system calls that Python 3.11 lacks, by ctypes. Every failure is an OSError that names the call."""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = (
    0x20000,
    0x8000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = (
    1,
    2,
    4,
    8,
    32,
    4096,
    16384,
    1 << 18,
)
MS_NOATIME, MS_NODIRATIME, MS_RELATIME = 1024, 2048, 1 << 21

_PR_SET_PDEATHSIG, _PR_CAPBSET_READ, _PR_CAPBSET_DROP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 23, 24, 36, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_SYS_CLOSE_RANGE, _SYS_MOUNT_SETATTR, _SYS_LANDLOCK_CREATE_RULESET = 436, 442, 444  # on every architecture
_AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY = -100, 0x8000, 1
_CAPABILITY_VERSION_3 = 0x20080522
_CAP_SYS_ADMIN = 21
LAST_DESCRIPTOR = 0xFFFFFFFF

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class _MountAttr(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")]


class _CapHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _CapData(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable")]


def _check(result: int, call: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    _check(_libc.unshare(ctypes.c_int(flags)), f"unshare({flags:#x})")


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    result = _libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3])
    _check(result, f"mount({kind or source}, {target})")


def set_read_only(path: str, read_only: bool, recursive: bool = False) -> None:
    """mount_setattr(2), Linux 5.12: leaves the mount's other flags (nosuid, locked ones) as they are."""
    attr = _MountAttr(attr_set=_MOUNT_ATTR_RDONLY if read_only else 0, attr_clr=0 if read_only else _MOUNT_ATTR_RDONLY)
    flags = _AT_RECURSIVE if recursive else 0
    arguments = (ctypes.c_int(_AT_FDCWD), os.fsencode(path), ctypes.c_uint(flags), ctypes.byref(attr))
    result = _libc.syscall(ctypes.c_long(_SYS_MOUNT_SETATTR), *arguments, ctypes.c_size_t(ctypes.sizeof(attr)))
    _check(result, f"mount_setattr({path})")


def close_range(first: int, last: int) -> None:
    """Close all descriptors of [first, last]; cheap even where a container allows a billion of them."""
    if first > last:
        return
    arguments = (ctypes.c_uint(first), ctypes.c_uint(last), ctypes.c_uint(0))
    if _libc.syscall(ctypes.c_long(_SYS_CLOSE_RANGE), *arguments) == 0:
        return
    for name in os.listdir("/proc/self/fd"):  # before Linux 5.9
        if first <= int(name) <= last:
            with suppress(OSError):
                os.close(int(name))


def _prctl(option: int, *arguments: int) -> int:
    padded = [ctypes.c_ulong(value) for value in (*arguments, 0, 0, 0, 0)[:4]]
    return int(_libc.prctl(ctypes.c_int(option), *padded))


def set_parent_death_signal(number: int) -> None:
    _check(_prctl(_PR_SET_PDEATHSIG, number), "prctl(PR_SET_PDEATHSIG)")


def die_with_parent() -> None:
    """SIGKILL to this process when the thread that forked it ends. Cleared by a fork, kept by execve."""
    set_parent_death_signal(signal.SIGKILL)


def become_subreaper() -> None:
    _check(_prctl(_PR_SET_CHILD_SUBREAPER, 1), "prctl(PR_SET_CHILD_SUBREAPER)")


def set_no_new_privileges() -> None:
    _check(_prctl(_PR_SET_NO_NEW_PRIVS, 1), "prctl(PR_SET_NO_NEW_PRIVS)")


def effective_capabilities() -> int:
    header, data = _CapHeader(_CAPABILITY_VERSION_3, 0), (_CapData * 2)()
    _check(_libc.capget(ctypes.byref(header), data), "capget")
    return int(data[0].effective) | int(data[1].effective) << 32


def can_administer() -> bool:
    """CAP_SYS_ADMIN: mount and PID namespaces need no user namespace."""
    return bool(effective_capabilities() >> _CAP_SYS_ADMIN & 1)


def drop_capabilities() -> None:
    """Empty every set, the bounding set too, so that a later execve by uid 0 regains nothing."""
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)  # kernels without ambient sets answer EINVAL
    capability = 0
    while _prctl(_PR_CAPBSET_READ, capability) >= 0:
        if _prctl(_PR_CAPBSET_DROP, capability) < 0:
            break  # no CAP_SETPCAP: an ordinary user, who has nothing to drop; no_new_privs does the rest
        capability += 1
    header, data = _CapHeader(_CAPABILITY_VERSION_3, 0), (_CapData * 2)()
    _check(_libc.capset(ctypes.byref(header), data), "capset")


def landlock_abi() -> int:
    """Version of Landlock's interface, 0 where the kernel has none."""
    number = ctypes.c_long(_SYS_LANDLOCK_CREATE_RULESET)
    result = int(_libc.syscall(number, None, ctypes.c_size_t(0), ctypes.c_uint(1)))
    return max(result, 0)

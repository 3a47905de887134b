"""What isolation this machine offers, for `cuda-agent doctor`: each item is tried, not guessed from versions."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cuda_agent.sandbox import linux
from cuda_agent.sandbox.program import LAUNCH, namespaces_refused
from cuda_agent.sandbox.support import enter_namespaces

_APPARMOR = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
_DEBIAN = Path("/proc/sys/kernel/unprivileged_userns_clone")
_MAXIMUM = Path("/proc/sys/user/max_user_namespaces")
_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")


@dataclass(frozen=True)
class Offer:
    """One means of isolation.

    detail: a version or a setting. reason, mend: why it is missing, and the command that mends it
    (None: nothing to be done here).
    """

    available: bool
    detail: str | None = None
    reason: str | None = None
    mend: str | None = None


def probe() -> dict[str, Offer]:
    """Keys: namespaces (all together: Level.NAMESPACES), user_namespaces, pid_namespaces, mount_namespaces,
    network_namespaces, private_proc, cgroup_v2, bubblewrap, landlock, ptrace_scope. Takes about 0.3 s; safe beside
    threads."""
    done = subprocess.run([*LAUNCH, "survey"], capture_output=True, text=True, timeout=60)
    tried: dict[str, str | None] = json.loads(done.stdout)
    reason, mend = _why_no_user_namespaces()
    offers = {}
    for name, error in {"namespaces": namespaces_refused(), **tried}.items():
        if error is None:
            offers[name] = Offer(True)
        elif name == "private_proc":
            cause = "a container masks parts of /proc, so the kernel refuses a new one"
            offers[name] = Offer(
                False, reason=f"{error}: {cause}", mend=_container("--security-opt systempaths=unconfined")
            )
        else:
            offers[name] = Offer(False, reason=f"{error}: {reason}", mend=mend)
    offers["cgroup_v2"] = _cgroup()
    bubblewrap = shutil.which("bwrap")
    offers["bubblewrap"] = Offer(True, bubblewrap) if bubblewrap else _missing_bubblewrap()
    abi = linux.landlock_abi()
    landlock_reason = "the kernel is older than 5.13 or was booted without Landlock"
    offers["landlock"] = Offer(True, f"ABI {abi}") if abi else Offer(False, reason=landlock_reason)
    offers["ptrace_scope"] = _ptrace_scope()
    return offers


def survey() -> dict[str, str | None]:
    """Try each kind of namespace in a fork; None: it works. Single-threaded callers only."""

    def enter(flags: int) -> Callable[[], None]:
        privileged = linux.can_administer()
        return lambda: linux.unshare(flags if privileged else flags | linux.CLONE_NEWUSER)

    def private_proc() -> None:
        enter_namespaces()
        init = os.fork()
        if init:
            os._exit(os.waitstatus_to_exitcode(os.waitpid(init, 0)[1]))
        linux.unshare(linux.CLONE_NEWNS)
        linux.mount(None, "/", None, linux.MS_REC | linux.MS_PRIVATE)
        linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)

    return {
        "user_namespaces": _attempt(lambda: linux.unshare(linux.CLONE_NEWUSER)),
        "pid_namespaces": _attempt(enter(linux.CLONE_NEWPID)),
        "mount_namespaces": _attempt(enter(linux.CLONE_NEWNS)),
        "network_namespaces": _attempt(enter(linux.CLONE_NEWNET)),
        "private_proc": _attempt(private_proc),
    }


def _attempt(action: Callable[[], None]) -> str | None:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        with suppress(BaseException):
            try:
                action()
                os._exit(0)
            except OSError as error:
                os.write(write, str(error).encode())
        os._exit(1)
    os.close(write)
    with open(read, "rb") as pipe:
        message = pipe.read().decode()
    _, state = os.waitpid(pid, 0)
    return None if state == 0 else message or "the attempt died"


def _why_no_user_namespaces() -> tuple[str, str | None]:
    if _read(_APPARMOR) == "1" and os.geteuid() != 0:
        return (
            "AppArmor keeps ordinary users from using user namespaces (Ubuntu 24.04's default)",
            "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        )
    if _read(_DEBIAN) == "0":
        return (
            "this kernel keeps ordinary users from user namespaces",
            "sudo sysctl -w kernel.unprivileged_userns_clone=1",
        )
    if _read(_MAXIMUM) == "0":
        return "no user namespace may be made here", "sudo sysctl -w user.max_user_namespaces=15000"
    if in_container():
        return "the container's seccomp profile or missing CAP_SYS_ADMIN forbids it", _container("--cap-add SYS_ADMIN")
    return "the kernel lacks it or a security module forbids it", None


def in_container() -> bool:
    markers = ("/.dockerenv", "/run/.containerenv")
    return any(Path(marker).exists() for marker in markers) or "KUBERNETES_SERVICE_HOST" in os.environ


def _container(option: str) -> str:
    profiles = "--security-opt seccomp=unconfined --security-opt apparmor=unconfined"
    return f"docker run {option} {profiles} …"


def _cgroup() -> Offer:
    line = next((line for line in _read(Path("/proc/self/cgroup")).splitlines() if line.startswith("0::")), None)
    mounts = (line.split() for line in _read(Path("/proc/self/mounts")).splitlines())
    root = next((fields[1] for fields in mounts if fields[2] == "cgroup2"), None)
    if line is None or root is None:
        return Offer(False, reason="no cgroup v2 hierarchy is mounted; the watcher stands in for it")
    folder = Path(root + line[3:])
    controllers = _read(folder / "cgroup.controllers").split()
    if not os.access(folder, os.W_OK) or not {"memory", "pids"} <= set(controllers):
        reason = f"{folder} is not ours to write or lacks the memory and pids controllers; the watcher stands in for it"
        return Offer(False, reason=reason, mend="systemd-run --user --scope -p Delegate=yes cuda-agent …")
    return Offer(True, str(folder))


def _missing_bubblewrap() -> Offer:
    return Offer(
        False, reason="bwrap is not on PATH (not needed: the same is done here)", mend="sudo apt-get install bubblewrap"
    )


def _ptrace_scope() -> Offer:
    value = _read(_YAMA)
    if value in ("1", "2", "3"):
        return Offer(True, value)
    reason = "processes of one user may trace each other, which matters only without namespaces"
    return Offer(False, value or None, reason, "sudo sysctl -w kernel.yama.ptrace_scope=1" if value else None)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""

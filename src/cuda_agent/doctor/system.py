"""Facts about the system and the commands that mend it. Standard library only: scripts/setup.py runs this file with
the system's Python, before anything is installed."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

MINIMUM = (3, 11)

# What each package manager calls things. {version} is Python's, as in 3.12.
_PACKAGES: dict[str, dict[str, str]] = {
    "apt": {"cxx": "g++", "headers": "python{version}-dev", "venv": "python{version}-venv", "python": "python3"},
    "dnf": {"cxx": "gcc-c++", "headers": "python{version}-devel", "venv": "python{version}", "python": "python3.12"},
    "zypper": {"cxx": "gcc-c++", "headers": "python3-devel", "venv": "python3", "python": "python312"},
    "pacman": {"cxx": "gcc", "headers": "python", "venv": "python", "python": "python"},
    "apk": {"cxx": "g++", "headers": "python3-dev", "venv": "python3", "python": "python3"},
    "brew": {"cxx": "llvm libomp", "headers": "python@3.12", "venv": "python@3.12", "python": "python@3.12"},
}
_COMMANDS = {
    "apt": "apt install {}",
    "dnf": "dnf install {}",
    "zypper": "zypper install {}",
    "pacman": "pacman -S {}",
    "apk": "apk add {}",
    "brew": "brew install {}",
}


def package_manager() -> str | None:
    for name in ("apt", "dnf", "zypper", "pacman", "apk", "brew"):
        if shutil.which("apt-get" if name == "apt" else name):
            return name
    return None


def mend(thing: str, version: str = "3") -> str:
    """The command that installs `thing` (cxx, headers, venv, python) on this distribution."""
    manager = package_manager()
    if manager is None:
        return {
            "cxx": "install a C++ compiler (g++ or clang++)",
            "headers": "uv python install 3.12",
            "venv": "uv python install 3.12",
            "python": "uv python install 3.12",
        }[thing]
    command = _COMMANDS[manager].format(_PACKAGES[manager][thing].format(version=version))
    root = manager == "brew" or (hasattr(os, "geteuid") and os.geteuid() == 0)
    return command if root else "sudo " + command


def find_cxx() -> str | None:
    for name in (os.environ.get("CXX"), "g++", "clang++"):
        path = name and shutil.which(name)
        if path:
            return path
    return None


def has_nvidia_gpu() -> bool:
    """A GPU whose driver answers; a CUDA toolkit alone is none."""
    if Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidiactl").exists():
        return True
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return False
    try:
        done = subprocess.run([smi, "-L"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and b"GPU" in done.stdout


_PROBE = """
import sys, sysconfig, os
headers = os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))
try:
    import venv, ensurepip
    has_venv = True
except ImportError:
    has_venv = False
print(sys.version_info[0], sys.version_info[1], int(headers), int(has_venv))
"""


class Interpreter:
    """A Python that could run us. version: (major, minor); headers: it has Python.h; venv: `-m venv` works."""

    def __init__(self, path: str, version: tuple[int, int], headers: bool, venv: bool) -> None:
        self.path, self.version, self.headers, self.venv = path, version, headers, venv

    @property
    def dotted(self) -> str:
        return "{}.{}".format(*self.version)


def probe_interpreter(command: str) -> Interpreter | None:
    """None if `command` is no working Python."""
    path = shutil.which(command)
    if path is None:
        return None
    try:
        done = subprocess.run([path, "-c", _PROBE], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=30)
        major, minor, headers, venv = map(int, done.stdout.split())
    except (OSError, ValueError, subprocess.TimeoutExpired):  # a shim without a Python behind it, a broken install
        return None
    return Interpreter(path, (major, minor), bool(headers), bool(venv))


def interpreters(names: list[str] | None = None) -> list[Interpreter]:
    """Pythons of a supported version, the best first: complete ones, then the order of `names`."""
    names = names or ["python3", "python3.12", "python3.11", "python3.13", sys.executable]
    found = [python for python in map(probe_interpreter, names) if python and python.version >= MINIMUM]
    return sorted(found, key=lambda python: not (python.headers and python.venv))


def is_macos() -> bool:
    return platform.system() == "Darwin"

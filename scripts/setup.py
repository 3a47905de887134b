#!/usr/bin/env python3
"""Set up .venv with torch and this package. Needs only the system's Python 3; run by `make`.

    python3 scripts/setup.py [--check]      --check: say what would be done, install nothing

Environment:
    CUDA_AGENT_PYTHON   the interpreter to use, else the best of those on PATH
    CUDA_AGENT_TORCH    `cpu` or `cuda`: which build of torch; else by whether there is an NVIDIA GPU
    CUDA_AGENT_VENV     where the environment goes, else .venv

On a machine without an NVIDIA GPU the CPU build of torch is installed, and what pip would install is looked at before
it is downloaded: a CUDA build is several gigabytes, and never comes by accident.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src" / "cuda_agent" / "doctor"))

import system  # noqa: E402

VENV = Path(os.environ.get("CUDA_AGENT_VENV") or ROOT / ".venv")
PYTHON = VENV / "bin" / "python"
STAMP = VENV / ".cuda-agent-setup"
CONSTRAINTS = ROOT / "scripts" / "constraints.txt"
PINNED, RANGE = "torch==2.13.0", "torch>=2.9"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CUDA_INDEX = "https://download.pytorch.org/whl/cu130"


class Build(NamedTuple):
    """A torch that pip found. url: the wheel's; flavour: cpu, cu130, cuda (an older CUDA)."""

    version: str
    url: str
    flavour: str


class Stop(Exception):
    """One sentence for the user."""


def main() -> int:
    check = "--check" in sys.argv[1:]
    fingerprint = _fingerprint()
    if not check and STAMP.is_file() and STAMP.read_text() == fingerprint and PYTHON.exists():
        return 0
    try:
        python = choose_python()
        check_system(python)
        flavour = wanted_flavour()
        if check:
            print(f"Python {python.dotted} ({python.path}), torch for {flavour}, environment {VENV}")
            return 0
        create_venv(python)
        install_torch(flavour)
        install_package(flavour)
    except Stop as stop:
        print(f"setup: {stop}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"setup: `{' '.join(map(str, error.cmd))}` failed; its output is above.", file=sys.stderr)
        return 1
    STAMP.write_text(fingerprint)
    return 0


def choose_python() -> system.Interpreter:
    asked = os.environ.get("CUDA_AGENT_PYTHON")
    if asked:
        python = system.probe_interpreter(asked)
        if python is None:
            raise Stop(f"CUDA_AGENT_PYTHON={asked} is no working Python.")
        if python.version < system.MINIMUM:
            raise Stop(f"CUDA_AGENT_PYTHON={asked} is Python {python.dotted}; 3.11 or 3.12 is needed.")
        return python
    found = system.interpreters()
    if not found:
        raise Stop(
            f"Python 3.11 or newer is needed and none is on PATH; install it with `{system.mend('python')}` "
            "(without root: `uv python install 3.12`, then CUDA_AGENT_PYTHON=$(uv python find 3.12))."
        )
    return found[0]


def check_system(python: system.Interpreter) -> None:
    """What pip cannot install. Raises Stop with the command that does."""
    if system.is_macos():
        print(
            "setup: on macOS the CPU kernels need a compiler with OpenMP (`brew install llvm libomp`, then "
            "CXX=$(brew --prefix llvm)/bin/clang++), and candidates run without isolation: Linux is what is tested.",
            file=sys.stderr,
        )
    if system.find_cxx() is None:
        raise Stop(f"no C++ compiler (g++ or clang++); install one with `{system.mend('cxx')}`.")
    if not python.headers:
        raise Stop(
            f"Python.h of {python.path} is missing, which torch.compile needs on the CPU; install it with "
            f"`{system.mend('headers', python.dotted)}` (without root: `uv python install 3.12`, then "
            "CUDA_AGENT_PYTHON=$(uv python find 3.12))."
        )


def wanted_flavour() -> str:
    asked = os.environ.get("CUDA_AGENT_TORCH", "")
    if asked not in ("", "cpu", "cuda"):
        raise Stop(f"CUDA_AGENT_TORCH={asked}: it is `cpu` or `cuda`.")
    return asked or ("cuda" if system.has_nvidia_gpu() else "cpu")


# --- environment -----------------------------------------------------------------------------------------------------


def create_venv(python: system.Interpreter) -> None:
    if PYTHON.exists() and (found := system.probe_interpreter(str(PYTHON))) is not None:
        if found.version >= system.MINIMUM:
            return
        shutil.rmtree(VENV)
    # A torch that the chosen Python already has (a container image, a cluster's module) is taken over.
    site = ["--system-site-packages"] if usable_torch(python.path, wanted_flavour()) else []
    say(f"creating {VENV} with Python {python.dotted}")
    if python.venv:
        run(python.path, "-m", "venv", *site, VENV)
    elif shutil.which("virtualenv"):
        run("virtualenv", "-q", "-p", python.path, *site, VENV)
    elif shutil.which("uv"):
        run("uv", "venv", "-q", "--seed", "--python", python.path, *site, VENV)
    else:
        raise Stop(
            f"Python's venv module is missing for {python.path}; install it with "
            f"`{system.mend('venv', python.dotted)}` (without root: `pip install --user virtualenv`)."
        )


def usable_torch(python: str, flavour: str) -> bool:
    """Whether `python` can import a torch in the range, built for this machine. A CUDA build serves without a GPU."""
    code = (
        "import torch; v = torch.__version__.split('+')[0].split('.'); print(int(v[0]), int(v[1]), torch.version.cuda)"
    )
    done = subprocess.run([python, "-W", "ignore", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    if done.returncode != 0:
        return False
    major, minor, cuda = done.stdout.decode().split()
    return (int(major), int(minor)) >= (2, 9) and (flavour == "cpu" or cuda.startswith("13"))


def install_torch(flavour: str) -> None:
    if usable_torch(str(PYTHON), flavour):
        return
    build = find_torch(flavour)
    say(f"installing torch {build.version} ({build.flavour})")
    where = build.url.split("#")[0]
    if where.startswith("file://"):
        pip("install", "-q", where)
    else:  # with pip's progress bar: this is the one long download
        pip("install", where)


def find_torch(flavour: str) -> Build:
    """The build to install, without installing it. Raises Stop if only another flavour can be had."""
    index = CPU_INDEX if flavour == "cpu" else CUDA_INDEX
    wanted = ("cpu",) if flavour == "cpu" else ("cu130",)
    others: list[Build] = []
    for requirement in (PINNED, RANGE):
        for extra in ([], ["--index-url", index]):
            build = resolve(requirement, extra)
            if build is not None and build.flavour in wanted:
                return build
            if build is not None:
                others.append(build)
    if flavour == "cuda" and os.environ.get("CUDA_AGENT_TORCH") == "cuda" and others:
        return others[0]
    if others:
        raise Stop(
            f"only torch {others[0].version} ({others[0].flavour}) can be had here, not a {'/'.join(wanted)} build; "
            "`CUDA_AGENT_TORCH=cuda make ...` accepts a CUDA build, and PIP_EXTRA_INDEX_URL can name a mirror of "
            f"{index}."
        )
    raise Stop(
        f"pip finds no {RANGE} for this Python, neither in its configured indexes nor at {index}; check the network, "
        f"or name a folder with the wheel in PIP_FIND_LINKS."
    )


def resolve(requirement: str, options: list[str]) -> Build | None:
    """What pip would install for `requirement`; None if nothing."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [PYTHON, "-m", "pip", "install", "-q", "--dry-run", "--ignore-installed", "--no-deps"]
        command += ["--only-binary", ":all:", "--report", report, *options, requirement]
        done = subprocess.run(command, capture_output=True)
        if done.returncode != 0:
            return None
        return read_report(json.loads(report.read_text()))


def read_report(report: dict) -> Build | None:
    """The torch in a pip installation report, and whether it is a CUDA build."""
    for item in report.get("install", []):
        metadata = item["metadata"]
        if metadata["name"].lower() == "torch":
            needs = [need.lower() for need in metadata.get("requires_dist", [])]
            return Build(metadata["version"], item["download_info"]["url"], flavour_of(metadata["version"], needs))
    return None


def flavour_of(version: str, requires: list[str]) -> str:
    local = version.partition("+")[2]
    if local.startswith("cpu"):
        return "cpu"
    cuda = [need for need in requires if need.startswith(("nvidia-", "cuda-")) and not _is_elsewhere(need)]
    if local.startswith("cu13") or any("cu13" in need or ("cuda-toolkit" in need and "==13" in need) for need in cuda):
        return "cu130"
    return "cuda" if cuda or local.startswith(("cu", "rocm")) else "cpu"


def _is_elsewhere(requirement: str) -> bool:
    """PyPI's one set of metadata names CUDA packages for Linux; its macOS wheels are CPU builds."""
    return system.is_macos() and "linux" in requirement


def install_package(flavour: str) -> None:
    say("installing cuda-agent and what it needs")
    constraints = ["-c", CONSTRAINTS] if flavour == "cpu" and "2.13.0" in _torch_version() else []
    pip("install", "-q", *constraints, "-e", f"{ROOT}[dev]")


def _torch_version() -> str:
    code = "from importlib.metadata import version; print(version('torch'))"
    return subprocess.run([PYTHON, "-c", code], stdout=subprocess.PIPE, check=True).stdout.decode().strip()


# --- running ---------------------------------------------------------------------------------------------------------


def pip(*arguments: object) -> None:
    run(PYTHON, "-m", "pip", "--disable-pip-version-check", *arguments)


def run(*command: object) -> None:
    subprocess.run([str(part) for part in command], check=True, stdout=sys.stderr)


def say(text: str) -> None:
    print(f"setup: {text}", file=sys.stderr, flush=True)


def _fingerprint() -> str:
    """Changes when what would be installed may change: the project's requirements, this script, the build asked for."""
    digest = hashlib.sha256()
    for path in (ROOT / "pyproject.toml", Path(__file__), CONSTRAINTS, Path(system.__file__)):
        digest.update(path.read_bytes())
    digest.update(os.environ.get("CUDA_AGENT_TORCH", "").encode())
    return digest.hexdigest()


if __name__ == "__main__":
    sys.exit(main())

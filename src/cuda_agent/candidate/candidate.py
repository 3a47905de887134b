"""A candidate as content: files by relative path. Nothing here runs them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Literal

from cuda_agent.errors import CandidateError

Form = Literal["launchers", "workdir", "single"]

MAX_BYTES = 16 << 20
MAX_FILES = 2000
SINGLE_FILE = "model_new.py"  # what a file of any name becomes

# Results of builds and of runs, never sources. `ops.py` is generated again, `utils` is the published judge's own.
_SKIPPED_FOLDERS = {"build", "dist", "__pycache__", "node_modules", "venv"}
_SKIPPED_SUFFIXES = {".so", ".o", ".a", ".pyc", ".pyd", ".ninja"}


@dataclass(frozen=True)
class Candidate:
    """files: relative POSIX path → content."""

    files: Mapping[str, bytes]
    form: Form

    @cached_property
    def key(self) -> str:
        digest = hashlib.sha256(self.form.encode())
        for path in sorted(self.files):
            digest.update(f"\0{path}\0{len(self.files[path])}\0".encode())
            digest.update(self.files[path])
        return digest.hexdigest()


def load_candidate(path: str | Path) -> Candidate:
    """Read a file (form `single`) or a folder (its form is found out, see `find_form`).

    Hidden files, build folders and built objects are left out, symbolic links are not followed. Raises CandidateError:
    nothing there, more than 16 MiB or 2000 files, or no layout that is known.
    """
    root = Path(path)
    if root.is_file():
        if root.suffix != ".py":
            raise CandidateError(
                f"{root} is not a Python file; give a .py file with ModelNew, or a candidate's folder."
            )
        if root.stat().st_size > MAX_BYTES:
            raise CandidateError(f"{root} is larger than {MAX_BYTES >> 20} MiB.")
        return Candidate({SINGLE_FILE: root.read_bytes()}, "single")
    if not root.is_dir():
        raise CandidateError(f"{root} does not exist; give a .py file with ModelNew, or a candidate's folder.")
    files: dict[str, bytes] = {}
    total = 0
    for file in _sources(root):
        total += file.stat().st_size
        if total > MAX_BYTES or len(files) == MAX_FILES:
            raise CandidateError(
                f"{root} holds more than {MAX_BYTES >> 20} MiB or {MAX_FILES} files; a candidate is sources only: "
                f"remove what is not (weights, data, builds); the last file read was {file.relative_to(root)}."
            )
        files[file.relative_to(root).as_posix()] = file.read_bytes()
    return Candidate(files, find_form(files, str(root)))


def find_form(files: Mapping[str, bytes], origin: str) -> Form:
    """`workdir` with binding.cpp or binding_registry.h, `launchers` with `extern "C"` in kernels/, else `single`.

    Raises CandidateError where there is no model_new.py, naming what is there instead.
    """
    if SINGLE_FILE not in files:
        there = ", ".join(sorted({PurePosixPath(path).parts[0] for path in files})[:10]) or "nothing"
        raise CandidateError(f"{origin} has no {SINGLE_FILE} (it holds {there}); write class ModelNew there.")
    if "binding.cpp" in files or "binding_registry.h" in files:
        return "workdir"
    kernels = [p for p in files if p.startswith("kernels/") and PurePosixPath(p).suffix in (".cpp", ".cu")]
    if any(b'extern "C"' in files[path] for path in kernels):
        return "launchers"
    if kernels:
        raise CandidateError(
            f'{origin}: {kernels[0]} has no function after `extern "C"`; add one, so that `ops` can call it, or a '
            "binding.cpp as in the published workdir."
        )
    return "single"


def check_path(path: str) -> PurePosixPath:
    """A relative path that stays below its root and survives a compiler's command line. Raises CandidateError."""
    parsed = PurePosixPath(path)
    if parsed.is_absolute() or not parsed.parts or ".." in parsed.parts or "\\" in path or not path.isprintable():
        raise CandidateError(f"{path!r} is not a path inside a candidate.")
    if str(parsed) != path or path.startswith("-") or parsed.name.startswith("-"):
        raise CandidateError(f"{path!r} is not a plain path; write it without `./`, `//` or a leading dash.")
    return parsed


def _sources(root: Path) -> Iterator[Path]:
    for folder, subfolders, names in os.walk(root, followlinks=False):
        subfolders[:] = sorted(n for n in subfolders if not n.startswith(".") and n not in _SKIPPED_FOLDERS)
        for name in sorted(names):
            file = Path(folder, name)
            plain = file.is_file() and not file.is_symlink()
            if plain and not name.startswith(".") and file.suffix not in _SKIPPED_SUFFIXES:
                yield file

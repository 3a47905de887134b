"""A candidate as content: files by relative path. Nothing here runs them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

Form = Literal["launchers", "workdir", "single"]


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
    """Read a file (form `single`) or a folder. Raises CandidateError."""
    raise NotImplementedError

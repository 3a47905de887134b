"""Compilers: found, and a clear word where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuda_agent.candidate import Toolchain
from cuda_agent.errors import SetupError


def test_no_compiler_is_one_sentence_with_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(SetupError, match=r"no C\+\+ compiler: .*`sudo apt-get install g\+\+`"):
        Toolchain.detect("cpu")


def test_no_nvcc_is_one_sentence_with_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.delenv("CUDACXX", raising=False)
    with pytest.raises(SetupError, match=r"no CUDA compiler: .*apt-get install cuda-nvcc"):
        Toolchain.detect("cuda")


def test_a_compiler_that_does_not_run_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\necho broken install >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(SetupError, match=r"g\+\+ does not run \(broken install\)"):
        Toolchain.detect("cpu")

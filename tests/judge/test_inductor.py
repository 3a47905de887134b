"""What torch.compile would compile anew in every runner."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from cuda_agent.judge import inductor
from cuda_agent.sandbox import Stopped


def test_it_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = os.eventfd(0)
    files = inductor.own_files(tmp_path, {}, stop)
    assert {Path(name).suffix for name in files} >= {".h", ".gch"}
    assert not [name for name in files if name.endswith(".main.so")]
    monkeypatch.setattr(inductor, "spawn", None)
    assert inductor.own_files(tmp_path, {}, stop) == files
    os.close(stop)


def test_a_run_that_failed_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = os.eventfd(0)
    monkeypatch.setattr(inductor, "_MAKE", "raise SystemExit(1)")
    assert inductor.own_files(tmp_path, {}, stop) == {}
    assert [path.suffix for path in (tmp_path / "inductor").iterdir()] == [".lock"]
    os.eventfd_write(stop, 1)
    with pytest.raises(Stopped):
        inductor.own_files(tmp_path, {}, stop)
    os.close(stop)


def test_they_go_where_inductor_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    inductor.install({"precompiled_headers/a.h": b"text", "ab/probe.so": b"code"})
    assert [path.read_bytes() for path in tmp_path.glob("torchinductor_*/precompiled_headers/a.h")] == [b"text"]
    assert (tmp_path / "cache" / "ab" / "probe.so").read_bytes() == b"code"

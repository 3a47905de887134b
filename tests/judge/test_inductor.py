"""The header that torch.compile would compile anew in every runner."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cuda_agent.judge import inductor
from cuda_agent.judge.inductor import install_headers, precompiled_headers
from cuda_agent.sandbox import Stopped


def test_it_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = os.eventfd(0)
    files = precompiled_headers(tmp_path, {}, stop)
    assert {Path(name).suffix for name in files} == {".h", ".gch"}
    monkeypatch.setattr(inductor, "spawn", None)
    assert precompiled_headers(tmp_path, {}, stop) == files
    os.close(stop)


def test_a_run_that_failed_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = os.eventfd(0)
    monkeypatch.setattr(inductor, "_MAKE", "raise SystemExit(1)")
    assert precompiled_headers(tmp_path, {}, stop) == {}
    assert [path.suffix for path in (tmp_path / "headers").iterdir()] == [".lock"]
    os.eventfd_write(stop, 1)
    with pytest.raises(Stopped):
        precompiled_headers(tmp_path, {}, stop)
    os.close(stop)


def test_it_goes_where_inductor_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import codecache

    monkeypatch.setattr(codecache, "_HEADER_DIR", str(tmp_path / "headers"))
    install_headers({"a.h": b"text"})
    assert (tmp_path / "headers" / "a.h").read_bytes() == b"text"

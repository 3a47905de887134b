"""Measured ceilings are plausible, and measured once."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuda_agent.backends import ceilings as module
from cuda_agent.backends import get_backend


def test_plausible_and_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_AGENT_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "_CPU_BUDGET_S", 0.05)
    monkeypatch.setattr(module, "_CPU_MATMUL", 512)
    first = get_backend("cpu").ceilings()
    assert 0.5 < first.copy_gbps < 5000
    assert 0.5 < first.read_gbps < 5000
    assert 0.001 < first.fp32_tflops < 500
    assert first.tf32_tflops is None
    assert first.threads is not None

    def measure_again(*arguments: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(module, "measure_ceilings", measure_again)
    assert get_backend("cpu").ceilings() == first

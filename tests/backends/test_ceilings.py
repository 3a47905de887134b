"""Measured ceilings are plausible, and measured once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cuda_agent.backends import Ceilings, get_backend
from cuda_agent.backends import ceilings as module


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
    assert Ceilings.from_json(json.loads(json.dumps(first.to_json()))) == first


def test_what_was_measured_on_a_busy_machine_only_rises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_AGENT_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "_BUSY_LOAD", -1)
    monkeypatch.setattr(module, "_BUSY_FOR_S", 0)
    results = [
        Ceilings("cpu", "2", 2, 10.0, 30.0, 0.1, None, None),
        Ceilings("cpu", "2", 2, 20.0, 15.0, 0.1, None, None),
    ]
    monkeypatch.setattr(module, "measure_ceilings", lambda *arguments: results.pop(0))
    assert module.cached_ceilings("cpu", "cpu", 2).copy_gbps == 10
    second = module.cached_ceilings("cpu", "cpu", 2)
    assert (second.copy_gbps, second.read_gbps) == (20, 30)

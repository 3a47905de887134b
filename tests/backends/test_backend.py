"""Choosing a backend, and what it says of its device."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cuda_agent.backends import cuda_driver, get_backend
from cuda_agent.errors import SetupError
from cuda_agent.paths import cache_dir


def test_auto_follows_what_torch_sees() -> None:
    assert get_backend("auto").kind == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_without_a_gpu_is_one_sentence() -> None:
    with pytest.raises(SetupError, match=r"CPU build|no NVIDIA GPU"):
        get_backend("cuda")


def test_importing_the_room_does_not_load_torch() -> None:
    code = "import sys, cuda_agent.backends, cuda_agent.sandbox; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_facts_of_the_cpu() -> None:
    facts = get_backend("cpu").describe()
    assert facts.kind == "cpu" and facts.name and facts.cores >= 1
    assert facts.memory_bytes > get_backend("cpu").memory_free() > 0


def test_driver_structures_have_the_sizes_of_cuda_h() -> None:
    assert ctypes.sizeof(cuda_driver._AllocationProperties) == 32
    assert cuda_driver._AllocationProperties.win32_handle_metadata.offset == 16
    assert cuda_driver._AllocationProperties.flags.offset == 24
    assert ctypes.sizeof(cuda_driver._AccessDescription) == 12


def test_cache_dir_honours_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CUDA_AGENT_CACHE", raising=False)
    assert cache_dir() == tmp_path / "cuda-agent"
    monkeypatch.setenv("CUDA_AGENT_CACHE", str(tmp_path / "other"))
    assert cache_dir() == tmp_path / "other"
    assert (tmp_path / "other").is_dir()

"""CPU arenas: memory that crosses processes as a descriptor."""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_agent.backends import get_backend

MIB = 1 << 20
backend = get_backend("cpu")


def test_is_zero_and_covers_the_whole_mapping() -> None:
    arena = backend.allocate(3 * MIB)
    assert arena.bytes.shape == (arena.nbytes,)
    assert arena.bytes.dtype is torch.uint8
    assert arena.nbytes >= 3 * MIB and arena.nbytes % 4096 == 0
    assert arena.bytes.data_ptr() % 4096 == 0
    assert not arena.bytes.any()
    arena.close()


def test_is_populated() -> None:
    arena = backend.allocate(32 * MIB)
    address = arena.bytes.data_ptr()
    found = re.search(rf"^{address:x}-.*?^Rss:\s+(\d+) kB", Path("/proc/self/smaps").read_text(), re.M | re.S)
    assert found is not None
    assert int(found.group(1)) * 1024 == arena.nbytes
    arena.close()


def test_size_is_sealed() -> None:
    arena = backend.allocate(MIB)
    fd = arena.export_fd()
    for size in (0, arena.nbytes * 2):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    os.close(fd)
    arena.close()


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64]), st.integers(0, 64))
def test_views_of_any_dtype(dtype: torch.dtype, slot: int) -> None:
    arena = backend.allocate(MIB)
    values = torch.arange(16).to(dtype)
    view = arena.bytes[slot * 512 : slot * 512 + 16 * dtype.itemsize].view(dtype)
    view.copy_(values)
    assert view.data_ptr() % 64 == 0
    assert torch.equal(view, values)
    del view
    arena.close()


def test_crosses_to_another_process() -> None:
    arena = backend.allocate(MIB)
    arena.bytes[:4] = torch.tensor([1, 2, 3, 4], dtype=torch.uint8)
    fd = arena.export_fd()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            arena.close()
            other = backend.attach(fd, arena.nbytes)
            other.bytes[:4] *= 2
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert arena.bytes[:4].tolist() == [2, 4, 6, 8]
    os.close(fd)
    arena.close()


def test_attach_checks_the_size() -> None:
    arena = backend.allocate(MIB)
    fd = arena.export_fd()
    with pytest.raises(ValueError, match="were asked for"):
        backend.attach(fd, arena.nbytes + 4096)
    os.close(fd)
    arena.close()


def test_close_frees_memory_and_descriptors() -> None:
    before = len(os.listdir("/proc/self/fd"))
    free = backend.memory_free()
    for _ in range(8):
        arena = backend.allocate(256 * MIB)
        assert arena.bytes[-1] == 0
        arena.close()
        arena.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert backend.memory_free() > free - 1024 * MIB


def test_a_living_view_survives_close() -> None:
    arena = backend.allocate(MIB)
    view = arena.bytes[:8]
    view.fill_(3)
    arena.close()
    assert view.tolist() == [3] * 8


def test_too_large_is_a_memory_error() -> None:
    with pytest.raises(MemoryError, match="does not fit"):
        backend.allocate(1 << 50)

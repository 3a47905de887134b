"""CUDA arenas on a GPU: across processes, users and namespaces."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from cuda_agent.backends import get_backend

pytestmark = pytest.mark.gpu
MIB = 1 << 20

# The child has its own CUDA context; a fork of this process could not use CUDA.
ATTACH = """
import os, socket, sys
import torch
from cuda_agent.backends import get_backend
from cuda_agent.backends import cuda, cuda_driver
channel = socket.socket(fileno=int(sys.argv[1]))
uid = int(sys.argv[2])
if uid:
    import ctypes
    os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
size, (fd,), _, _ = socket.recv_fds(channel, 64, 1)
backend = get_backend("cuda")
arena = backend.attach(fd, int(size))
os.close(fd)
view = arena.bytes[1024 : 1024 + 4 * 4].view(torch.float32)
view.mul_(2)
backend.synchronize()
arena.close()
channel.send(b"done")
"""


def source_folder() -> str:
    import cuda_agent

    return str(Path(cuda_agent.__file__).parents[1])


def test_is_zero_aligned_and_typed() -> None:
    arena = get_backend("cuda").allocate(3 * MIB)
    assert arena.nbytes == 4 * MIB
    assert arena.bytes.shape == (arena.nbytes,) and arena.bytes.device.type == "cuda"
    assert arena.bytes.data_ptr() % (2 * MIB) == 0
    assert not arena.bytes.any()
    for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.bool):
        view = arena.bytes[512 : 512 + 8 * dtype.itemsize].view(dtype)
        view.copy_(torch.arange(8, device="cuda"))
        assert torch.equal(view, torch.arange(8, device="cuda").to(dtype))
    del view
    arena.close()


def exchange(command: list[str], ours: socket.socket, theirs: socket.socket) -> None:
    backend = get_backend("cuda")
    arena = backend.allocate(MIB)
    view = arena.bytes[1024 : 1024 + 4 * 4].view(torch.float32)
    view.copy_(torch.tensor([1.0, 2, 3, 4], device="cuda"))
    backend.synchronize()
    child = subprocess.Popen(command, pass_fds=(theirs.fileno(),), env={**os.environ, "PYTHONPATH": source_folder()})
    theirs.close()
    fd = arena.export_fd()
    socket.send_fds(ours, [str(arena.nbytes).encode()], [fd])
    os.close(fd)
    ours.settimeout(120)
    assert ours.recv(16) == b"done"
    assert child.wait(60) == 0
    assert view.tolist() == [2, 4, 6, 8]
    del view
    arena.close()


@pytest.mark.parametrize("uid", [0, 65534])
def test_crosses_to_another_process_and_user(uid: int) -> None:
    if uid and os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    ours, theirs = socket.socketpair()
    exchange([sys.executable, "-c", ATTACH, str(theirs.fileno()), str(uid)], ours, theirs)


def test_crosses_into_a_confined_process() -> None:
    """A fresh zygote forks the confined child, which makes its own CUDA context inside its namespaces."""
    ours, theirs = socket.socketpair()
    program = f"""
        import os, sys
        import torch
        from cuda_agent.sandbox import Policy, fork_confined
        attach = {ATTACH!r}
        def main():
            exec(compile(attach, "attach", "exec"), {{"__name__": "attach"}})
        policy = Policy(devices=True, wall_s=100, memory_bytes=64 << 30, processes=4096)
        child = fork_confined(main, policy, close_fds_except=(int(sys.argv[1]),), output_fd=2)
        ended = child.wait(120)
        print(child.level, child.gaps, ended, file=sys.stderr)
        sys.exit(0 if ended and ended.code == 0 else 1)
    """
    exchange([sys.executable, "-c", textwrap.dedent(program), str(theirs.fileno()), "0"], ours, theirs)


def test_export_attach_and_close_do_not_leak() -> None:
    backend = get_backend("cuda")

    def once() -> None:
        arena = backend.allocate(64 * MIB)
        fd = arena.export_fd()
        other = backend.attach(fd, arena.nbytes)
        os.close(fd)
        arena.bytes[:8] = 5
        assert other.bytes[:8].tolist() == [5] * 8
        other.close()
        arena.close()
        arena.close()

    once()
    gc.collect()
    backend.synchronize()
    free, descriptors = backend.memory_free(), len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        once()
    assert backend.memory_free() >= free - 8 * MIB
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_too_large_is_a_memory_error() -> None:
    with pytest.raises(MemoryError, match="does not fit"):
        get_backend("cuda").allocate(1 << 44)


def test_ceilings_and_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_AGENT_CACHE", str(tmp_path))
    backend = get_backend("cuda")
    with backend.timer_lease():
        ceilings = backend.ceilings()
    assert 50 < ceilings.copy_gbps < 20_000
    assert ceilings.tf32_tflops is not None and ceilings.tf32_tflops > ceilings.fp32_tflops
    assert ceilings.bf16_tflops is not None and ceilings.bf16_tflops > ceilings.tf32_tflops
    facts = backend.describe()
    assert facts.capability and facts.cores > 1 and facts.memory_bytes > backend.memory_free()
    print(ceilings, facts)

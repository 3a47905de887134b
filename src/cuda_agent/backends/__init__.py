"""All that differs between devices, behind one protocol. torch is imported when a function needs it."""

from __future__ import annotations

from typing import Literal

from cuda_agent.backends.base import Arena, Backend, Ceilings, DeviceFacts, Kind

__all__ = [
    "Arena",
    "Backend",
    "Ceilings",
    "DeviceFacts",
    "Kind",
    "get_backend",
]


def get_backend(kind: Literal["cpu", "cuda", "auto"] = "auto") -> Backend:
    """`auto`: CUDA where torch sees a GPU, else the CPU. Raises SetupError for `cuda` without one. Initialises no
    device."""
    from cuda_agent.backends.cuda import CudaBackend, cuda_is_available, require_cuda

    if kind == "cuda":
        require_cuda()
        return CudaBackend()
    if kind == "auto" and cuda_is_available():
        return CudaBackend()
    from cuda_agent.backends.cpu import CpuBackend

    return CpuBackend()

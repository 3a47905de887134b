"""Kernels for the CPU: C++17 with OpenMP, vectorised by the compiler."""

from cuda_agent.expert.cpu.emitter import CpuEmitter

__all__ = ["CpuEmitter"]

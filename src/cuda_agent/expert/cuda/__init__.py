"""CUDA C++ for the plans of the built-in expert."""

from cuda_agent.expert.cuda.emitter import CudaEmitter
from cuda_agent.expert.cuda.schedule import DeviceFacts

__all__ = ["CudaEmitter", "DeviceFacts"]

"""CUDA GPUs: arenas are driver allocations with POSIX-fd handles, mapped in torch's primary context."""

from __future__ import annotations

import functools
import gc
import os
import shutil
import subprocess
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from cuda_agent.backends.base import Ceilings, DeviceFacts, Kind
from cuda_agent.backends.ceilings import cached_ceilings
from cuda_agent.backends.cuda_driver import Mapping, granularity
from cuda_agent.backends.lease import lease
from cuda_agent.errors import SetupError

if TYPE_CHECKING:
    import torch

# Bits of NVML's clocks event reasons that slow a GPU down (nvml.h); idle and application settings are not among them.
_SLOWDOWNS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal",
    0x40: "thermal (hardware)",
    0x80: "power brake",
}


class _DeviceBytes:
    """https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html, version 3"""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


class CudaArena:
    """Device memory that crosses process, uid and namespace borders as a file descriptor."""

    def __init__(self, mapping: Mapping) -> None:
        self.nbytes = mapping.nbytes
        self._mapping = mapping
        self._bytes: torch.Tensor | None = None

    @property
    def bytes(self) -> torch.Tensor:
        import torch

        if self._bytes is None:
            if not self._mapping.address:
                raise ValueError("the arena is closed")
            memory = _DeviceBytes(self._mapping.address, self.nbytes)
            self._bytes = torch.as_tensor(memory, device=torch.device("cuda", self._mapping.device))
        return self._bytes

    def export_fd(self) -> int:
        return self._mapping.export_fd()

    def close(self) -> None:
        self._bytes = None
        self._mapping.close()


class CudaBackend:
    """The current CUDA device of this process (choose it with CUDA_VISIBLE_DEVICES)."""

    kind: Kind = "cuda"
    torch_device = "cuda"

    def _device(self) -> int:
        """Index of the current device, with torch's context on it made current in this thread."""
        import torch

        torch.cuda.init()
        torch.zeros(1, device="cuda")
        return torch.cuda.current_device()

    def allocate(self, nbytes: int) -> CudaArena:
        device = self._device()
        size, free = _round_up(nbytes, granularity(device)), self.memory_free()
        if size > free:
            raise MemoryError(
                f"an arena of {size / 2**30:.2f} GiB does not fit: {free / 2**30:.2f} GiB of the GPU are free"
            )
        mapping = Mapping.create(size, device)
        mapping.zero()
        return CudaArena(mapping)

    def attach(self, fd: int, nbytes: int) -> CudaArena:
        device = self._device()
        return CudaArena(Mapping.open(fd, _round_up(nbytes, granularity(device)), device))

    def synchronize(self) -> None:
        import torch

        torch.cuda.synchronize()

    def empty_cache(self) -> None:
        import torch

        gc.collect()
        torch.cuda.empty_cache()

    def memory_free(self) -> int:
        import torch

        return torch.cuda.mem_get_info()[0]

    def timer_lease(self, shared: bool = False) -> AbstractContextManager[None]:
        return lease(self._uuid(), shared)

    @functools.cache  # noqa: B019 - one backend per process
    def _uuid(self) -> str:
        import torch

        return f"cuda-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"

    def ceilings(self) -> Ceilings:
        import torch

        return cached_ceilings("cuda", torch.cuda.get_device_name(), None)

    def device_name(self) -> str:
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        try:
            said = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout.split("\n")
        except (OSError, subprocess.SubprocessError) as error:
            raise SetupError(f"nvidia-smi does not name the GPU ({error}); it comes with NVIDIA's driver") from error
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
        return said[int(visible) if visible.isdigit() and int(visible) < len(said) else 0].strip()

    def describe(self) -> DeviceFacts:
        import torch

        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        state = _query_state(str(properties.uuid))
        reasons = int(state.get("reasons") or "0", 16)
        return DeviceFacts(
            kind="cuda",
            name=properties.name,
            memory_bytes=properties.total_memory,
            cores=properties.multi_processor_count,
            capability=f"{properties.major}.{properties.minor}",
            driver=state.get("driver"),
            clock_mhz=_number(state.get("clock")),
            clock_max_mhz=_number(state.get("clock_max")),
            throttled=[reason for bit, reason in _SLOWDOWNS.items() if reasons & bit],
            load=None if _number(state.get("load")) is None else float(state["load"]) / 100,
        )


def _round_up(nbytes: int, granule: int) -> int:
    return max(-(-nbytes // granule), 1) * granule


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None  # "[N/A]"


def _query_state(uuid: str) -> dict[str, str]:
    """What nvidia-smi says; empty where it is missing or knows nothing."""
    if shutil.which("nvidia-smi") is None:
        return {}
    fields = {"driver": "driver_version", "clock": "clocks.sm", "clock_max": "clocks.max.sm", "load": "utilization.gpu"}
    for reasons in ("clocks_event_reasons.active", "clocks_throttle_reasons.active"):  # renamed in driver 535
        query = ",".join([*fields.values(), reasons])
        gpu = uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
        command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits", "-i", gpu]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=20)
        except subprocess.TimeoutExpired:
            return {}
        values = [value.strip() for value in done.stdout.strip().split(",")]
        if done.returncode == 0 and len(values) == len(fields) + 1:
            state = dict(zip([*fields, "reasons"], values, strict=True))
            return state if state["reasons"].startswith("0x") else {**state, "reasons": "0"}
    return {}


def cuda_is_available() -> bool:
    """Without initialising CUDA, so that this process may still fork workers that use it; without torch where the
    system has no device file of such a driver (also WSL's and Tegra's)."""
    if not any(name.startswith(("nvidia", "nvhost", "dxg")) for name in os.listdir("/dev")):
        return False
    import torch

    previous = os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK")
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    try:
        return torch.cuda.is_available()
    finally:
        if previous is None:
            del os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"]
        else:
            os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = previous


def require_cuda() -> None:
    """Raises SetupError where torch cannot use a GPU."""
    import torch

    if cuda_is_available():
        return
    if torch.version.cuda is None:
        raise SetupError(
            f"torch {torch.__version__} is a CPU build; on a machine with an NVIDIA GPU install a CUDA build: "
            "`pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu130`"
        )
    raise SetupError(
        "torch sees no NVIDIA GPU: check `nvidia-smi`, the driver and CUDA_VISIBLE_DEVICES, or use the CPU backend"
    )

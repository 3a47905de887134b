"""What every device offers, whatever it is. Implementations: `cpu.CpuBackend`, `cuda.CudaBackend`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import torch


Kind = Literal["cpu", "cuda"]


class Arena(Protocol):
    """Memory that can be mapped into several processes at once.

    nbytes: size of the mapping, what was asked for rounded up to the device's granule; pass it to `attach`.
    bytes: uint8 tensor of shape (nbytes,) over all of it, zero at first, aligned to at least 4 KiB.
        `bytes[a:b].view(dtype)` is a tensor of any dtype if `a` is a multiple of its size.
    """

    nbytes: int

    @property
    def bytes(self) -> torch.Tensor: ...
    def export_fd(self) -> int:
        """A new descriptor of the memory, to be sent with SCM_RIGHTS; the caller closes it."""
        ...

    def close(self) -> None:
        """Unmap. Views of `bytes` must not be used after it. The memory is freed once every process has closed it."""
        ...


@dataclass(frozen=True)
class Ceilings:
    """Best rates seen on this device, not the datasheet's. None: the device does not do it.

    copy_gbps: 10⁹ bytes/s of a large copy, bytes read plus bytes written. read_gbps: of a large sum.
    *_tflops: 10¹² floating-point operations/s of a large matmul.
    """

    device: str
    torch: str
    threads: int | None
    copy_gbps: float
    read_gbps: float
    fp32_tflops: float
    tf32_tflops: float | None
    bf16_tflops: float | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Ceilings:
        return cls(**{field.name: data[field.name] for field in fields(cls)})


@dataclass(frozen=True)
class DeviceFacts:
    """What is known of a device, and its state at this moment.

    memory_bytes: total. clock_mhz, clock_max_mhz: of the SMs or of the fastest core. throttled: why it runs slower
    than it could; empty if it does not or cannot tell. load: share of the device that is busy, 0 to 1, with work of
    anybody.
    """

    kind: Kind
    name: str
    memory_bytes: int
    cores: int
    capability: str | None = None
    driver: str | None = None
    clock_mhz: float | None = None
    clock_max_mhz: float | None = None
    throttled: list[str] = field(default_factory=list)
    load: float | None = None


class Backend(Protocol):
    kind: Kind
    torch_device: str

    def allocate(self, nbytes: int) -> Arena:
        """Zeroed memory of this process that can be exported. Raises MemoryError where there is not enough."""
        ...

    def attach(self, fd: int, nbytes: int) -> Arena:
        """Map an arena that another process exported; `fd` stays the caller's to close."""
        ...

    def device_name(self) -> str:
        """Without a context on the device, for processes that must have none."""
        ...

    def synchronize(self) -> None: ...
    def empty_cache(self) -> None: ...
    def memory_free(self) -> int: ...
    def timer_lease(self, shared: bool = False) -> AbstractContextManager[None]:
        """Exclusive use of the device among our processes, for timing; shared for whatever would disturb it."""
        ...

    def ceilings(self) -> Ceilings:
        """Measured in this process, once per device and torch version, then read from the cache."""
        ...

    def describe(self) -> DeviceFacts: ...

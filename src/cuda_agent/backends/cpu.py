"""The CPU: arenas are populated memfds."""

from __future__ import annotations

import ctypes
import fcntl
import functools
import gc
import hashlib
import mmap
import os
import platform
import re
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from cuda_agent.backends.base import Ceilings, DeviceFacts, Kind
from cuda_agent.backends.ceilings import cached_ceilings
from cuda_agent.backends.lease import lease

if TYPE_CHECKING:
    import torch

_GRANULE = 1 << 21  # a huge page
_SHMEM_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
_MADV_POPULATE_WRITE = 23  # Linux 5.14


class CpuArena:
    """A memfd, mapped shared and populated: as fast as ordinary memory (38 % slower if its pages were faulted in one
    by one).

    Its size is sealed, so that no process that holds the descriptor can make another one fault by truncating it.
    """

    def __init__(self, fd: int, nbytes: int) -> None:
        """Takes over `fd`."""
        self.nbytes = nbytes
        self._fd = fd
        # Populating before huge pages were asked for would settle the arena on small ones.
        advise = "[advise]" in _read(_SHMEM_HUGE_PAGES)
        flags = mmap.MAP_SHARED | (0 if advise else mmap.MAP_POPULATE)
        self._map = mmap.mmap(fd, nbytes, flags=flags)
        if advise:
            self._map.madvise(mmap.MADV_HUGEPAGE)
            with suppress(OSError):
                self._map.madvise(_MADV_POPULATE_WRITE)
        self._bytes: torch.Tensor | None = None

    @property
    def bytes(self) -> torch.Tensor:
        import numpy as np
        import torch

        if self._bytes is None:
            # numpy holds the buffer while a view lives; torch.frombuffer would let `close` pull it from under one.
            self._bytes = torch.from_numpy(np.frombuffer(self._map, dtype=np.uint8))
        return self._bytes

    def export_fd(self) -> int:
        return os.dup(self._fd)

    def close(self) -> None:
        if self._fd < 0:
            return
        self._bytes = None
        with suppress(BufferError):  # a view is alive: unmapped when the last one dies
            self._map.close()
        os.close(self._fd)
        self._fd = -1


class CpuBackend:
    kind: Kind = "cpu"
    torch_device = "cpu"

    def allocate(self, nbytes: int) -> CpuArena:
        size = max(-(-nbytes // _GRANULE), 1) * _GRANULE
        free = self.memory_free()
        if size > free:
            raise MemoryError(
                f"an arena of {size / 2**30:.2f} GiB does not fit: {free / 2**30:.2f} GiB of memory are free"
            )
        fd = os.memfd_create("cuda-agent-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, size)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            return CpuArena(fd, size)
        except BaseException:
            os.close(fd)
            raise

    def attach(self, fd: int, nbytes: int) -> CpuArena:
        size = os.fstat(fd).st_size
        if size < nbytes:
            raise ValueError(f"the arena holds {size} bytes, {nbytes} were asked for")
        return CpuArena(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 0), min(size, -(-nbytes // _GRANULE) * _GRANULE))

    def synchronize(self) -> None:
        """CPU operators have finished when they return."""

    def empty_cache(self) -> None:
        gc.collect()
        with suppress(AttributeError):  # glibc only
            ctypes.CDLL(None).malloc_trim(0)

    def memory_free(self) -> int:
        """Bytes that can be had without swapping, within this process's control group."""
        found = re.search(r"^MemAvailable:\s+(\d+) kB", _read(Path("/proc/meminfo")), re.MULTILINE)
        available = int(found.group(1)) * 1024 if found else os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE
        limit, used = _read(Path("/sys/fs/cgroup/memory.max")), _read(Path("/sys/fs/cgroup/memory.current"))
        if limit.strip().isdigit() and used.strip().isdigit():
            available = min(available, max(int(limit) - int(used), 0))
        return available

    def timer_lease(self, shared: bool = False) -> AbstractContextManager[None]:
        return lease("cpu", shared)

    def ceilings(self) -> Ceilings:
        import torch

        return cached_ceilings("cpu", cpu_model(), torch.get_num_threads())

    def device_name(self) -> str:
        return cpu_model()

    def describe(self) -> DeviceFacts:
        cores = len(os.sched_getaffinity(0))
        folder = Path("/sys/devices/system/cpu/cpu0/cpufreq")
        clocks = [float(value) for value in re.findall(r"^cpu MHz\s*:\s*([\d.]+)", _read(Path("/proc/cpuinfo")), re.M)]
        highest = _read(folder / "cpuinfo_max_freq").strip()
        governor = _read(folder / "scaling_governor").strip()
        return DeviceFacts(
            kind="cpu",
            name=cpu_model(),
            memory_bytes=os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE,
            cores=cores,
            clock_mhz=max(clocks, default=None),
            clock_max_mhz=int(highest) / 1000 if highest.isdigit() else None,
            throttled=[f"frequency governor is {governor}"] if governor == "powersave" else [],
            load=min(os.getloadavg()[0] / cores, 1.0),
        )


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


@functools.cache
def cpu_model() -> str:
    """The CPU's name with a hash of its instruction sets."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    name = re.search(r"^(?:model name|Model)\s*:\s*(.*)$", text, re.MULTILINE)
    features = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    digest = hashlib.sha256((features.group(1) if features else "").encode()).hexdigest()[:8]
    return f"{name.group(1).strip() if name else platform.machine()} ({digest})"

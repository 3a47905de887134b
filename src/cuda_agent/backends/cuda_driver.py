"""The virtual memory calls of the CUDA driver API, by ctypes on libcuda.so.1 (layouts: cuda.h of CUDA 12 and 13)."""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, byref, c_int, c_size_t, c_uint, c_ulonglong, c_void_p

_PINNED, _POSIX_FD, _ON_DEVICE, _READ_WRITE, _GRANULARITY_MINIMUM = 1, 1, 1, 3, 0
_OUT_OF_MEMORY = 2


class CudaDriverError(RuntimeError):
    """A driver call failed; the message names the call and the driver's own words."""


class _Location(ctypes.Structure):
    _fields_ = [("type", c_int), ("id", c_int)]


class _AllocationFlags(ctypes.Structure):
    _fields_ = [
        ("compression_type", ctypes.c_ubyte),
        ("gpu_direct_rdma_capable", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    ]


class _AllocationProperties(ctypes.Structure):
    """CUmemAllocationProp: 32 bytes."""

    _fields_ = [
        ("type", c_int),
        ("requested_handle_types", c_int),
        ("location", _Location),
        ("win32_handle_metadata", c_void_p),
        ("flags", _AllocationFlags),
    ]


class _AccessDescription(ctypes.Structure):
    """CUmemAccessDesc: 12 bytes."""

    _fields_ = [("location", _Location), ("flags", c_int)]


_PROTOTYPES = {
    "cuMemGetAllocationGranularity": (POINTER(c_size_t), POINTER(_AllocationProperties), c_int),
    "cuMemCreate": (POINTER(c_ulonglong), c_size_t, POINTER(_AllocationProperties), c_ulonglong),
    "cuMemRelease": (c_ulonglong,),
    "cuMemAddressReserve": (POINTER(c_ulonglong), c_size_t, c_size_t, c_ulonglong, c_ulonglong),
    "cuMemAddressFree": (c_ulonglong, c_size_t),
    "cuMemMap": (c_ulonglong, c_size_t, c_size_t, c_ulonglong, c_ulonglong),
    "cuMemUnmap": (c_ulonglong, c_size_t),
    "cuMemSetAccess": (c_ulonglong, c_size_t, POINTER(_AccessDescription), c_size_t),
    "cuMemExportToShareableHandle": (c_void_p, c_ulonglong, c_int, c_ulonglong),
    "cuMemImportFromShareableHandle": (POINTER(c_ulonglong), c_void_p, c_int),
    "cuMemsetD8_v2": (c_ulonglong, ctypes.c_ubyte, c_size_t),
    "cuCtxSynchronize": (),
    "cuGetErrorString": (c_int, POINTER(ctypes.c_char_p)),
}


@functools.cache
def _driver() -> ctypes.CDLL:
    library = ctypes.CDLL("libcuda.so.1")
    for name, arguments in _PROTOTYPES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, c_uint
    return library


def _call(name: str, *arguments: object) -> None:
    result = getattr(_driver(), name)(*arguments)
    if result == 0:
        return
    words = ctypes.c_char_p()
    _driver().cuGetErrorString(result, byref(words))
    message = f"{name}: {(words.value or b'unknown error').decode()} (CUresult {result})"
    raise MemoryError(message) if result == _OUT_OF_MEMORY else CudaDriverError(message)


def _properties(device: int) -> _AllocationProperties:
    return _AllocationProperties(type=_PINNED, requested_handle_types=_POSIX_FD, location=_Location(_ON_DEVICE, device))


@functools.cache
def granularity(device: int) -> int:
    """Sizes and addresses of mappings are multiples of it; 2 MiB on every GPU so far."""
    size = c_size_t()
    _call("cuMemGetAllocationGranularity", byref(size), byref(_properties(device)), _GRANULARITY_MINIMUM)
    return size.value


class Mapping:
    """Physical device memory with an address in this process's current context.

    address: device pointer, a multiple of the granularity. nbytes: a multiple of it too.
    """

    def __init__(self, handle: int, nbytes: int, device: int) -> None:
        """Takes over `handle`."""
        self.handle, self.nbytes, self.device, self.address = handle, nbytes, device, 0
        self._mapped = False
        try:
            address = c_ulonglong()
            _call("cuMemAddressReserve", byref(address), nbytes, granularity(device), 0, 0)
            self.address = address.value
            _call("cuMemMap", self.address, nbytes, 0, handle, 0)
            self._mapped = True
            access = _AccessDescription(location=_Location(_ON_DEVICE, device), flags=_READ_WRITE)
            _call("cuMemSetAccess", self.address, nbytes, byref(access), 1)
        except BaseException:
            self.close()
            raise

    @classmethod
    def create(cls, nbytes: int, device: int) -> Mapping:
        """New memory, not zeroed. Raises MemoryError."""
        handle = c_ulonglong()
        _call("cuMemCreate", byref(handle), nbytes, byref(_properties(device)), 0)
        return cls(handle.value, nbytes, device)

    @classmethod
    def open(cls, fd: int, nbytes: int, device: int) -> Mapping:
        """Memory that another process exported as `fd`, which stays open."""
        handle = c_ulonglong()
        _call("cuMemImportFromShareableHandle", byref(handle), c_void_p(fd), _POSIX_FD)
        return cls(handle.value, nbytes, device)

    def export_fd(self) -> int:
        fd = c_int(-1)
        _call("cuMemExportToShareableHandle", ctypes.cast(byref(fd), c_void_p), self.handle, _POSIX_FD, 0)
        return fd.value

    def zero(self) -> None:
        _call("cuMemsetD8_v2", self.address, 0, self.nbytes)
        _call("cuCtxSynchronize")

    def close(self) -> None:
        """Unmap and release; kernels in flight are waited for. May be called again."""
        if self._mapped:
            _call("cuCtxSynchronize")
            _call("cuMemUnmap", self.address, self.nbytes)
            self._mapped = False
        if self.address:
            _call("cuMemAddressFree", self.address, self.nbytes)
            self.address = 0
        if self.handle:
            _call("cuMemRelease", self.handle)
            self.handle = 0

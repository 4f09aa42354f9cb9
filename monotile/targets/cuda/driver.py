"""The few functions of the CUDA driver that a launch needs, through ctypes.

The driver is loaded when a `Driver` is created, never at import. Every failed call raises.
"""

import contextlib
import ctypes
import functools
from collections.abc import Generator
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p

from monotile.errors import TargetError

_MULTIPROCESSORS = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
_SHARED_OPT_IN = 97  # CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
_COOPERATIVE = 95  # CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH
_COOPERATIVE_LAUNCH = 2  # CU_LAUNCH_ATTRIBUTE_COOPERATIVE
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_PORTABLE_MAPPED = 3  # CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP
_NOT_FOUND = 500  # CUDA_ERROR_NOT_FOUND
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING

# Symbol (of the version that the driver API's header names today): argument types.
_SIGNATURES: dict[str, tuple[type, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxGetCurrent": (POINTER(c_void_p),),
    "cuCtxSetCurrent": (c_void_p,),
    "cuModuleLoadData": (POINTER(c_void_p), c_char_p),
    "cuModuleGetFunction": (POINTER(c_void_p), c_void_p, c_char_p),
    "cuFuncGetModule": (POINTER(c_void_p), c_void_p),
    "cuModuleGetGlobal_v2": (POINTER(c_uint64), POINTER(c_size_t), c_void_p, c_char_p),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": (POINTER(c_int), c_void_p, c_int, c_size_t),
    "cuLaunchKernelEx": (c_void_p, c_void_p, c_void_p, c_void_p),
    "cuMemAlloc_v2": (POINTER(c_uint64), c_size_t),
    "cuMemHostAlloc": (POINTER(c_void_p), c_size_t, c_uint),
    "cuMemcpyHtoD_v2": (c_uint64, c_void_p, c_size_t),
    "cuMemsetD8Async": (c_uint64, c_ubyte, c_size_t, c_void_p),
    "cuMemcpyHtoDAsync_v2": (c_uint64, c_void_p, c_size_t, c_void_p),
    "cuStreamCreate": (POINTER(c_void_p), c_uint),
    "cuStreamSynchronize": (c_void_p,),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuThreadExchangeStreamCaptureMode": (POINTER(c_int),),
}


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute, of which only the number is used."""

    _fields_ = (("id", c_uint), ("pad", c_uint), ("value", c_uint), ("rest", c_uint * 15))


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig of a cooperative launch. The stream is to be set before each launch."""

    _fields_ = (
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared", c_uint),
        ("stream", c_void_p),
        ("attributes", c_void_p),
        ("attribute_count", c_uint),
    )

    def __init__(self, blocks: int, threads: int, shared: int) -> None:
        self.cooperative = _Attribute(_COOPERATIVE_LAUNCH, 0, 1)  # kept alive beside its address
        super().__init__(
            (c_uint * 3)(blocks, 1, 1),
            (c_uint * 3)(threads, 1, 1),
            shared,
            None,
            ctypes.addressof(self.cooperative),
            1,
        )


class DriverError(RuntimeError):
    """An error status of the driver; sticky ones (a failed index check) also come up in PyTorch."""


class Driver:
    """A loaded and initialised driver. Raises TargetError where there is none."""

    def __init__(self, library: str = "libcuda.so.1") -> None:
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            raise TargetError(
                f"no CUDA driver on this machine ({library} was not found). Install NVIDIA's driver,"
                ' or compile with target="cpu"'
            ) from error
        for symbol, arguments in _SIGNATURES.items():
            function = getattr(self._library, symbol)
            function.argtypes = arguments
            function.restype = c_int
        # (address of a LaunchConfig, function, array of pointers to the parameters, None) to a status.
        self.launch = self._library.cuLaunchKernelEx
        status = self._library.cuInit(0)
        if status != 0:
            raise TargetError(
                f"the CUDA driver does not start: {self._words(status)}. Is there a GPU that this"
                ' process may use? Without one, compile with target="cpu"'
            )

    def check(self, status: int, doing: str) -> None:
        """Raises DriverError unless `status` is success."""
        if status != 0:
            raise DriverError(f"{doing}: {self._words(status)}")

    def _words(self, status: int) -> str:
        name, text = c_char_p(), c_char_p()
        self._library.cuGetErrorName(status, byref(name))
        self._library.cuGetErrorString(status, byref(text))
        return f"{(name.value or b'?').decode()} ({status}), {(text.value or b'?').decode()}"

    def version(self) -> tuple[int, int]:
        """The newest CUDA that this driver supports, such as (13, 0)."""
        number = c_int()
        self.check(self._library.cuDriverGetVersion(byref(number)), "asking the driver's version")
        return number.value // 1000, number.value % 1000 // 10

    def _attribute(self, attribute: int, device: int) -> int:
        handle, value = c_int(), c_int()
        self.check(self._library.cuDeviceGet(byref(handle), device), f"opening GPU {device}")
        status = self._library.cuDeviceGetAttribute(byref(value), attribute, handle)
        self.check(status, f"asking about GPU {device}")
        return value.value

    def multiprocessors(self, device: int) -> int:
        return self._attribute(_MULTIPROCESSORS, device)

    def shared_bytes(self, device: int) -> int:
        """Dynamic shared memory that a block may have, in bytes."""
        return self._attribute(_SHARED_OPT_IN, device)

    def cooperative(self, device: int) -> bool:
        """The GPU can launch a kernel whose blocks are all resident at once."""
        return self._attribute(_COOPERATIVE, device) != 0

    def primary_context(self, device: int) -> int:
        """The context that PyTorch uses too; retained for the life of the process."""
        handle, context = c_int(), c_void_p()
        self.check(self._library.cuDeviceGet(byref(handle), device), f"opening GPU {device}")
        status = self._library.cuDevicePrimaryCtxRetain(byref(context), handle)
        self.check(status, f"opening the context of GPU {device}")
        return context.value or 0

    def current_context(self) -> int:
        context = c_void_p()
        self.check(self._library.cuCtxGetCurrent(byref(context)), "asking for the context")
        return context.value or 0

    def set_context(self, context: int) -> None:
        self.check(self._library.cuCtxSetCurrent(context), "setting the context")

    @contextlib.contextmanager
    def within(self, context: int) -> Generator[None]:
        """Runs its body in `context`, then restores the calling thread's own."""
        before = self.current_context()
        if before == context:
            yield
            return
        self.set_context(context)
        try:
            yield
        finally:
            self.set_context(before)

    def load(self, image: bytes, entry: str) -> int:
        """A kernel of a cubin, in the current context. It stays loaded: captured graphs may refer to it."""
        module, function = c_void_p(), c_void_p()
        self.check(self._library.cuModuleLoadData(byref(module), image), "loading the cubin")
        status = self._library.cuModuleGetFunction(byref(function), module, entry.encode())
        self.check(status, f"finding {entry} in the cubin")
        return function.value or 0

    def allow_shared(self, function: int, nbytes: int) -> None:
        """Lets the kernel have `nbytes` of dynamic shared memory a block."""
        status = self._library.cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED, nbytes)
        self.check(status, f"asking for {nbytes} bytes of shared memory a block")

    def resident_blocks(self, function: int, threads: int, shared: int) -> int:
        """Blocks of the kernel that fit on one multiprocessor at once."""
        blocks = c_int()
        status = self._library.cuOccupancyMaxActiveBlocksPerMultiprocessor(
            byref(blocks), function, threads, shared
        )
        self.check(status, "asking how many blocks fit")
        return blocks.value

    def zeros(self, nbytes: int) -> int:
        """The address of `nbytes` zeroed bytes of device memory, never freed.

        Works while a stream of this thread is being captured, and leaves no trace in the capture.
        """
        address, stream, mode = c_uint64(), c_void_p(), c_int(_RELAXED)
        lib = self._library
        self.check(lib.cuThreadExchangeStreamCaptureMode(byref(mode)), "leaving the capture")
        try:
            self.check(lib.cuMemAlloc_v2(byref(address), nbytes), f"allocating {nbytes} bytes")
            self.check(lib.cuStreamCreate(byref(stream), _NON_BLOCKING), "making a stream")
            self.check(lib.cuMemsetD8Async(address, 0, nbytes, stream), "zeroing memory")
            self.check(lib.cuStreamSynchronize(stream), "zeroing memory")
            self.check(lib.cuStreamDestroy_v2(stream), "ending a stream")
        finally:
            self.check(lib.cuThreadExchangeStreamCaptureMode(byref(mode)), "back to the capture")
        return address.value

    def host_word(self) -> int:
        """The address, on the host and on every GPU, of four zeroed bytes of the host's memory; never freed."""
        address = c_void_p()
        status = self._library.cuMemHostAlloc(byref(address), 4, _PORTABLE_MAPPED)
        self.check(status, "allocating a word of the host's memory")
        assert address.value is not None
        ctypes.memset(address.value, 0, 4)
        return address.value

    def set_pointer(self, function: int, symbol: str, value: int) -> None:
        """Sets the global variable `symbol` of the kernel's cubin, a pointer, if the cubin has it."""
        module, address, size = c_void_p(), c_uint64(), c_size_t()
        self.check(self._library.cuFuncGetModule(byref(module), function), "finding the cubin")
        status = self._library.cuModuleGetGlobal_v2(
            byref(address), byref(size), module, symbol.encode()
        )
        if status != _NOT_FOUND:
            self.check(status, f"finding {symbol} in the cubin")
            pointer = c_uint64(value)
            status = self._library.cuMemcpyHtoD_v2(address.value, ctypes.addressof(pointer), 8)
            self.check(status, f"setting {symbol}")

    def copy_in(self, address: int, source: int, nbytes: int, stream: int) -> None:
        """Copies host memory at `source` to device memory at `address`, in the order of `stream`."""
        status = self._library.cuMemcpyHtoDAsync_v2(address, source, nbytes, stream)
        self.check(status, "copying the table of pointers")


@functools.cache
def driver() -> Driver:
    """The process's driver. Raises TargetError where there is none."""
    return Driver()

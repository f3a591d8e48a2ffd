"""NVIDIA's driver library, through ctypes: loading machine code, and what its errors mean.

Launches go through argand's C extension, which gets the addresses of the driver's functions from here.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from argand.errors import GpuError
from argand.locks import fork_safe_lock
from argand.quick_dataclasses import dataclass
from argand.runtime.gpu.device.kernel_image import Image
from argand.runtime.gpu.device.target import LIBCUDA

_SHARED_OPTIN = 97  # CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
_MAX_THREADS, _STATIC_SHARED, _REGISTERS, _DYNAMIC_SHARED = 0, 1, 4, 8  # CU_FUNC_ATTRIBUTE_...
_FREE_SHARED = 48 << 10  # bytes of shared memory that a block gets without asking
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
OUT_OF_MEMORY = 2
_EARLIER = (
    "an earlier kernel, of argand, the program or a library, failed: run with CUDA_LAUNCH_BLOCKING=1 to see which one"
)
_BLOCKS = 'compile with backend="eager", and please report the kernel'
_OTHER_GPU = "run `argand cache clear`; if it comes again, update the driver"
# Error of the driver -> what it means here, and what to do.
_MEANINGS: Mapping[int, tuple[str, str]] = {
    1: ("the launch has arguments that the driver does not take", _BLOCKS),
    OUT_OF_MEMORY: ("the GPU has no memory left", "free memory, or make the batch smaller"),
    3: (
        "the driver is not initialised in this process",
        "use CUDA in one of the processes of a fork",
    ),
    4: ("the driver is shutting down", "do not call compiled functions while Python ends"),
    200: ("the machine code is damaged", _OTHER_GPU),
    201: ("the GPU's context is gone", "do not reset the device while the program runs"),
    209: ("the machine code is for another kind of GPU", _OTHER_GPU),
    218: ("the driver is too old for this version of Triton", "update the driver"),
    222: ("the driver is too old for this version of Triton", "update the driver"),
    500: ("the machine code has no such function", _OTHER_GPU),
    700: ("an address that is not the program's was read or written", _EARLIER),
    701: ("the kernel needs more registers or shared memory than a block can have", _BLOCKS),
    702: ("a kernel ran for too long", _EARLIER),
    710: ("an assertion in a kernel failed: an index is out of range, perhaps", _EARLIER),
    716: ("an address was not aligned", _EARLIER),
    719: ("a kernel failed", _EARLIER),
    900: ("the stream is being captured, and this cannot be captured", "call the function once before capturing"),
    901: ("the stream is being captured, and this cannot be captured", "call the function once before capturing"),
}


@dataclass(frozen=True, slots=True)
class Loaded:
    """A function on a device. Its module stays loaded as long as the process lives, as torch's do.

    Arguments:
        function, context: the driver's handles.
    """

    function: int
    context: int


class Driver:
    """The driver library at a path.

    Raises:
        GpuError: it cannot be loaded, or lacks functions.
    """

    def __init__(self, path: str = LIBCUDA) -> None:
        self.path = path
        try:
            self.library = ctypes.CDLL(path)
            self.addresses = (
                self._address("cuLaunchKernel"),
                self._address("cuCtxGetCurrent"),
                self._address("cuCtxPushCurrent_v2"),
                self._address("cuCtxPopCurrent_v2"),
            )
        except (OSError, AttributeError) as error:
            raise GpuError(f"the driver's library cannot be used: {error}", remedy="install NVIDIA's driver") from error
        self._contexts: dict[int, int] = {}
        self._lock = fork_safe_lock()

    def _address(self, name: str) -> int:
        return int(ctypes.cast(getattr(self.library, name), ctypes.c_void_p).value or 0)

    def call(self, what: str, name: str, *args: Any) -> None:
        """Call a function of the driver.

        Raises:
            GpuError: it failed; `what` begins the message ("loading kernel add").
        """
        code = getattr(self.library, name)(*args)
        if code:
            self.fail(code, what)

    def fail(self, code: int, what: str) -> NoReturn:
        """Raise the GpuError for an error of the driver."""
        meaning, remedy = _MEANINGS.get(code, ("the driver reported an error", _BLOCKS))
        raise GpuError(f"{what}: {meaning} ({self.text_of(code)})", remedy=remedy, code=code)

    def text_of(self, code: int) -> str:
        """The driver's own words for an error."""
        text = ctypes.c_char_p()
        with contextlib.suppress(AttributeError):
            self.library.cuGetErrorString(code, ctypes.byref(text))
        said = (text.value or b"").decode(errors="replace")
        return f"error {code}: {said}" if said else f"error {code}"

    def context(self, index: int) -> int:
        """The context of a device that torch uses too."""
        with self._lock:
            if index not in self._contexts:
                what, device, context = f"using cuda:{index}", ctypes.c_int(), ctypes.c_void_p()
                self.call(what, "cuInit", 0)
                self.call(what, "cuDeviceGet", ctypes.byref(device), index)
                self.call(what, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
                self._contexts[index] = context.value or 0
            return self._contexts[index]

    @contextlib.contextmanager
    def inside(self, what: str, context: int) -> Iterator[None]:
        """With this context current, and while streams of this process may be captured."""
        self.call(what, "cuCtxPushCurrent_v2", ctypes.c_void_p(context))
        mode = ctypes.c_int(_RELAXED)
        try:
            self.call(what, "cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
            try:
                yield
            finally:
                self.library.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
        finally:
            self.library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))

    def load(self, image: Image, index: int) -> Loaded:
        """Load machine code on a device.

        Raises:
            GpuError: the driver refuses it, or a block of the kernel needs more than the device has.
        """
        what, context = f"loading kernel {image.symbol} on cuda:{index}", self.context(index)
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        with self.inside(what, context):
            self.call(what, "cuModuleLoadData", ctypes.byref(module), image.code)
            self.call(what, "cuModuleGetFunction", ctypes.byref(function), module, image.symbol.encode())
            registers, most, static = (
                self._attribute(what, kind, function) for kind in (_REGISTERS, _MAX_THREADS, _STATIC_SHARED)
            )
            if image.threads > most:
                raise GpuError(
                    f"{what}: a block of {image.threads} threads does not fit: {registers} registers each leave room "
                    f"for {most}",
                    remedy=_BLOCKS,
                )
            if image.shared + static > _FREE_SHARED:
                self._ask_for_shared(what, index, function, image.shared, static)
        return Loaded(function.value or 0, context)

    def _attribute(self, what: str, kind: int, function: ctypes.c_void_p) -> int:
        value = ctypes.c_int()
        self.call(what, "cuFuncGetAttribute", ctypes.byref(value), kind, function)
        return value.value

    def _ask_for_shared(self, what: str, index: int, function: ctypes.c_void_p, size: int, static: int) -> None:
        device, most = ctypes.c_int(), ctypes.c_int()
        self.call(what, "cuDeviceGet", ctypes.byref(device), index)
        self.call(what, "cuDeviceGetAttribute", ctypes.byref(most), _SHARED_OPTIN, device)
        if size + static > most.value:
            raise GpuError(
                f"{what}: a block needs {size + static} bytes of shared memory, and this GPU has {most.value}",
                remedy=_BLOCKS,
            )
        self.call(what, "cuFuncSetAttribute", function, _DYNAMIC_SHARED, size)


@functools.cache
def driver(path: str = LIBCUDA) -> Driver:
    """The driver library, loaded once."""
    return Driver(path)

"""A compiled kernel as bytes: the machine code, and what a launch has to know, as one line of JSON before it.

The form in which kernels lie in the disk cache, where the checksum covers both.
"""

from __future__ import annotations

import json
from dataclasses import asdict

from argand.errors import GpuError
from argand.quick_dataclasses import dataclass

_VERSION = 1
_HEADER_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Image:
    """Machine code of one kernel.

    Arguments:
        symbol: of the function in it.
        threads: of one block.
        shared: bytes of shared memory of one block, given at the launch.
        params: bytes of each parameter. Those behind the kernel's own arguments are pointers to memory that Triton
            wants for itself; kernels that use it are refused, so that these are null.
        code: a cubin.
    """

    symbol: str
    threads: int
    shared: int
    params: tuple[int, ...]
    code: bytes

    def dump(self) -> bytes:
        """What `parse` reads."""
        header = {**asdict(self), "version": _VERSION, "code": len(self.code)}
        return json.dumps(header).encode() + b"\n" + self.code


def parse(data: bytes) -> Image:
    """The image that `Image.dump` wrote.

    Raises:
        GpuError: it is none.
    """
    head, newline, code = data.partition(b"\n")
    try:
        if not newline or len(head) > _HEADER_BYTES:
            raise ValueError("it has no header")
        header = json.loads(head)
        if header.pop("version") != _VERSION or header.pop("code") != len(code):
            raise ValueError("it is of another version, or cut")
        symbol, threads, shared, params = (header.pop(name) for name in ("symbol", "threads", "shared", "params"))
        numbers = [threads, shared, *params]
        if header or not isinstance(symbol, str) or any(type(number) is not int for number in numbers):
            raise ValueError("its header is damaged")
        if not (0 < threads <= 1024 and 0 <= shared < 1 << 20 and all(size in (1, 2, 4, 8) for size in params)):
            raise ValueError("its header is damaged")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise GpuError(f"this is no compiled kernel: {error}", remedy="run `argand cache clear`") from error
    return Image(symbol, threads, shared, tuple(params), code)

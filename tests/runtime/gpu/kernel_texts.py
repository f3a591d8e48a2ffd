"""Source texts of kernels that several tests use."""

HEAD = """\
import triton
import triton.language as tl
from triton.language.extra import libdevice
"""

ADD = (
    HEAD
    + """

@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out + at, tl.load(x + at, mask) + tl.load(y + at, mask), mask)
"""
)
ADD_SPEC = (("*fp32", "*fp32", "*fp32", "i32"), (("BLOCK", 128),), 4, 2)


def unary(expression: str, *, helpers: str = "") -> str:
    """A kernel `f(x, out, n)` that computes `expression` of `x`."""
    return f"""{HEAD}
{helpers}

@triton.jit
def f(x_ptr, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    x = tl.load(x_ptr + at, mask)
    tl.store(out + at, {expression}, mask)
"""

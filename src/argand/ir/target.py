"""What differs between kinds of device, as data: `Target`.

Scheduling and the host module read it, and nothing below the ATen graph asks for the device otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from argand.quick_dataclasses import dataclass

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Limits, costs and legal plans of one kind of device.

    Arguments:
        name: begins the names of its kernels, and says which generator prints them: "cpp", "triton".
        processors: threads or multiprocessors, for what generated code depends on.
        threads: outer points that a large kernel should have at least, to use the whole device.
        max_statements, max_members: fused groups stop growing there.
        row_bytes: what one outer point of a kernel of several stages may touch.
        serial_bytes: what one outer point may touch where there are fewer than `threads` of them: so little that a
            kernel more would take longer.
        vector_run: contiguous elements below which a loop is too short for full vectors, or memory lines.
        small_work: loop points below which a kernel is not worth a second thread.
        small_points: neighbouring kernels of stages of at most so many loop points are joined; 0 joins none.
        joined_members: how many kernels of equal loops, which may be far apart, become one at most.
        joined_bytes: what such a kernel may touch and wait for others nevertheless; a larger one is joined with its
            neighbours.
        scratch_bytes: row buffers of one outer point together.
        barriers: a kernel may run stages that share no loops one after the other (all points of one before the next).
        nested_reductions: a stage beside others may have own loops around its reduction loops.
        shares_innermost: stages may share the loop along which memory is contiguous (a program computes many of its
            points at once).
        columns: points that a program of a reduction computes, where memory is contiguous along them.
        split_reduction: loop points a program of a reduction should have at most, before it is split in two kernels;
            0 splits none.
        column_bytes: what chunks of a reduction of columns read of a buffer, about: they stay in a cache; 0 cuts none.
        arena_alignment: bytes; its temporaries share an arena, in which they begin at multiples of this. 0: each is
            allocated.
        arena_largest: bytes; a larger temporary is allocated by itself, so that other tensors get its memory as soon
            as it is not needed any more.
        scan_length: elements of the longest rows that kernels compute cumulative sums of; 0: they do not. ANY_LENGTH:
            they add up one by one.
        segments: independent small kernels that do the same to different buffers, of whatever sizes, become one of at
            most so many segments; 0 joins none.
        segment_points: loop points of a kernel that is worth joining.
        segment_bytes: temporaries that joined kernels may touch together: they live longer than they would.
        pointers: that one kernel may take.
        direct_products: products of 16-bit floats go to the library of the device's maker past ATen.
        host_memory: its buffers are what the host's memory plan and kernels are for: kept buffers share blocks, large
            ones get large pages, products and gradients of convolutions may be argand's.
        product_kernels: products of matrices may be kernels of the generator's, together with what is computed from
            them; which are is found by timing (`mode="max-autotune"`).
        program_memory: bytes of fast memory that a program may have for the operands of a product.
        activated_products: its library adds a bias and computes relu, or gelu by tanh, in the kernel of a product.
        times_layouts: its library's convolutions may be faster with the channels innermost; found by timing.
        layout_seconds: how long that may take: those convolutions are timed that take most of the time, until then.
        layout_products: a program with fewer multiplications in its convolutions is not worth it.
        parts_biases: its library adds the bias of a convolution in a kernel of its own, and sums its gradient in one.
        depthwise_taps: elements of the largest windows whose depthwise convolutions are loops; 0: none are.
        depthwise_innermost: only where the channels are innermost, and of no 16-bit floats: its library is as fast
            elsewhere. A graph with depthwise convolutions is laid out so.
        depthwise_weights: the gradients of their weights, which are long sums, are loops too (a GPU's library takes
            three quarters of the time).
    """

    name: str
    processors: int
    threads: int
    max_statements: int = 400  # beyond, a kernel spills registers and takes long to compile
    max_members: int = 48
    row_bytes: int = 1 << 20
    serial_bytes: int
    vector_run: int
    small_work: int
    small_points: int
    joined_members: int
    joined_bytes: int
    scratch_bytes: int
    barriers: bool
    nested_reductions: bool
    shares_innermost: bool
    columns: int
    split_reduction: int
    column_bytes: int = 0
    arena_alignment: int
    arena_largest: int
    scan_length: int
    segments: int
    segment_points: int
    segment_bytes: int
    pointers: int
    direct_products: bool
    host_memory: bool
    product_kernels: bool
    program_memory: int
    activated_products: bool
    times_layouts: bool = True
    layout_seconds: float
    layout_products: float
    parts_biases: bool
    depthwise_taps: int
    depthwise_innermost: bool
    depthwise_weights: bool = False


ANY_LENGTH = UNLIMITED = 1 << 62

Targets = Callable[["torch.device"], Target | None]
"""The target of a device; None where no code is generated for it."""


def cpu(threads: int) -> Target:
    """A CPU of `threads` threads: kernels are C++, a row stays in the level-2 cache."""
    return Target(
        name="cpp",
        processors=threads,
        threads=threads,
        serial_bytes=0,
        vector_run=128,
        small_work=1 << 14,
        small_points=1 << 14,
        joined_members=0,
        joined_bytes=0,
        scratch_bytes=1 << 19,
        barriers=True,
        nested_reductions=True,
        shares_innermost=False,
        columns=1,
        split_reduction=0,
        column_bytes=1 << 17,
        arena_alignment=64,
        arena_largest=UNLIMITED,  # the system maps what is that large anew each time, and clears it
        scan_length=ANY_LENGTH,
        segments=0,  # a call costs as much as looking up a segment's pointers
        segment_points=0,
        segment_bytes=0,
        pointers=1 << 16,
        direct_products=False,
        host_memory=True,
        product_kernels=False,
        program_memory=0,
        activated_products=False,
        layout_seconds=0.16,
        layout_products=2e7,
        parts_biases=False,
        depthwise_taps=9,  # larger windows want several results at once, which share what they read
        depthwise_innermost=True,
    )


def gpu(processors: int, program_memory: int = 227 << 10, *, direct_products: bool = False) -> Target:
    """A GPU of `processors` multiprocessors: kernels are Triton programs, which cannot wait for each other."""
    return Target(
        name="triton",
        processors=processors,
        threads=2 * processors,
        serial_bytes=1 << 17,  # 2 to 5 us for one multiprocessor, as a launch and the way through memory
        vector_run=32,
        small_work=0,
        small_points=0,
        joined_members=16,
        joined_bytes=1 << 20,
        scratch_bytes=1 << 20,
        barriers=False,
        nested_reductions=False,
        shares_innermost=True,
        columns=64,
        split_reduction=1 << 15,
        arena_alignment=512,
        arena_largest=1 << 20,  # there are few larger ones in a call, and an arena's memory is nobody else's
        scan_length=1 << 13,  # what a program holds in registers
        segments=64,
        segment_points=1 << 24,  # beyond, a launch is nothing beside the work
        segment_bytes=16 << 20,
        pointers=400,  # 4 KiB are what every driver takes
        direct_products=direct_products,
        host_memory=False,
        product_kernels=True,
        program_memory=program_memory,
        activated_products=True,
        layout_seconds=float("inf"),
        layout_products=0.0,
        parts_biases=True,
        depthwise_taps=25,  # beyond, its library is faster (7 x 7: by a fifth on an H200)
        depthwise_innermost=False,
    )


def amd_gpu(processors: int, program_memory: int = 64 << 10) -> Target:
    """A GPU of AMD's: all arguments of a kernel are in registers, of which a program has a hundred."""
    return replace(gpu(processors, program_memory), pointers=32)


def on_cpu(threads: int) -> Targets:
    """Targets where code is generated for CPU tensors alone."""

    def find(device: torch.device) -> Target | None:
        return cpu(threads) if device.type == "cpu" else None

    return find

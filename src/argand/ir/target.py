"""What differs between kinds of device, as data: `Target`. Scheduling reads it, and nothing below the ATen graph asks for the device otherwise."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """Limits, costs and legal plans of one kind of device.

    Arguments:
        name: begins the names of its kernels: "cpp", "triton".
        threads: outer points that a large kernel should have at least, to use the whole device.
        max_statements, max_members: fused groups stop growing there.
        row_bytes: what one outer point of a kernel of several stages may touch.
        vector_run: contiguous elements below which a loop is too short for full vectors.
        small_work: loop points below which a kernel is not worth a second thread.
        small_points: neighbouring kernels of at most so many loop points together are joined; 0 joins none.
        scratch_bytes: row buffers of one outer point together.
        barriers: a kernel may run stages that share no loops one after the other (all points of one before the next).
        nested_reductions: a stage beside others may have own loops around its reduction loops.
        split_reduction: loop points a program of a reduction should have at most, before it is split in two kernels;
            0 splits none.
    """

    name: str
    threads: int
    max_statements: int
    max_members: int
    row_bytes: int
    vector_run: int
    small_work: int
    small_points: int
    scratch_bytes: int
    barriers: bool
    nested_reductions: bool
    split_reduction: int


def cpu(threads: int) -> Target:
    """A CPU of `threads` threads: kernels are C++, a row stays in the level-2 cache."""
    return Target(
        name="cpp",
        threads=threads,
        max_statements=400,  # beyond, a kernel spills registers and takes long to compile
        max_members=48,
        row_bytes=1 << 20,
        vector_run=128,
        small_work=1 << 14,
        small_points=4096,
        scratch_bytes=1 << 19,
        barriers=True,
        nested_reductions=True,
        split_reduction=0,
    )


def gpu(processors: int) -> Target:
    """A GPU of `processors` multiprocessors: kernels are Triton programs, which cannot wait for each other."""
    return Target(
        name="triton",
        threads=2 * processors,
        max_statements=400,
        max_members=48,
        row_bytes=1 << 20,
        vector_run=32,
        small_work=0,
        small_points=0,
        scratch_bytes=1 << 20,
        barriers=False,
        nested_reductions=False,
        split_reduction=1 << 15,
    )

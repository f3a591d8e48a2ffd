"""Kernels of a graph for many sizes: variants of each, chosen by the sizes of a call.

Where positions fit into 32 bits, they and the sizes have as many; sizes that are multiples of 16 are promised to be,
so that rows begin where accesses of 16 bytes may. A variant is compiled when sizes first ask for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from argand.runtime.gpu.kernels import load
from argand.runtime.gpu.kernels.spec import LaunchSpec, launch_spec
from argand.runtime.profile import Kernel

NARROW = 1 << 30  # below, positions have 32 bits
WIDE = "WIDE"  # the constant of a kernel that says so
_MULTIPLE = 16
MAX_VARIANTS = 8  # of a graph, with promises; further ones promise nothing
_MAX_SIZES = 256  # of which it is remembered what they ask for

Variant = tuple[bool, tuple[bool, ...]]  # positions have 64 bits; which sizes are multiples of 16


class TritonVariants:
    """The kernels of a host module whose code depends on sizes: `variants(*sizes)` are those for a call.

    Arguments:
        text: a Python module of `@triton.jit` functions.
        specs: by kernel name: what `launch_spec` takes, and which arguments are which of the sizes: {place: number}.
        reach: the greatest position that any of the kernels computes, given the sizes.
        device: as for `load_triton_kernels`.
        likely: sizes for which kernels are compiled at once.

    Raises:
        GpuError, ToolchainError: as `load_triton_kernels`.
    """

    def __init__(
        self,
        text: str,
        specs: Mapping[str, tuple[Any, Mapping[int, int]]],
        reach: Callable[..., int],
        device: str,
        likely: Sequence[int],
    ) -> None:
        self._text, self._reach, self._device = text, reach, device
        self._specs = [(launch_spec(name, literal), dict(places)) for name, (literal, places) in specs.items()]
        self._variants: dict[Variant, list[Kernel]] = {}
        self._by_sizes: dict[tuple[int, ...], list[Kernel]] = {}
        self(*likely)

    def __call__(self, *sizes: int) -> list[Kernel]:
        """The kernels for a call with these sizes, in the order of the specs."""
        kernels = self._by_sizes.get(sizes)
        return self._choose(sizes) if kernels is None else kernels

    def _choose(self, sizes: tuple[int, ...]) -> list[Kernel]:
        variant = self.variant(sizes)
        kernels = self._variants.get(variant)
        if kernels is None:
            specs = {spec.name: self._spec(spec, places, variant) for spec, places in self._specs}
            kernels = self._variants[variant] = load.load_triton_kernels(self._text, specs, self._device)
        if len(self._by_sizes) >= _MAX_SIZES:
            self._by_sizes.clear()
        self._by_sizes[sizes] = kernels
        return kernels

    def variant(self, sizes: tuple[int, ...]) -> Variant:
        """What may be promised for these sizes."""
        wide = self._reach(*sizes) >= NARROW
        wanted = wide, tuple(size % _MULTIPLE == 0 for size in sizes)
        if wanted in self._variants or len(self._variants) < MAX_VARIANTS:
            return wanted
        return wide, (False,) * len(sizes)

    def _spec(self, spec: LaunchSpec, places: Mapping[int, int], variant: Variant) -> LaunchSpec:
        wide, multiples = variant
        kinds = list(spec.signature)
        for place in places:
            kinds[place] = "i64" if wide else "i32"
        constants = tuple((name, int(wide) if name == WIDE else value) for name, value in spec.constants)
        promised = tuple(place for place, number in places.items() if multiples[number])
        return replace(spec, signature=tuple(kinds), constants=constants, multiples=promised)

"""The text of arenas: how a host module lays out temporaries, takes the memory and gives it back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

import torch

from argand.codegen.host.memory import MemoryPlan, Space
from argand.graph.sizes.expr import Expr
from argand.ir.kernel import CPU
from argand.quick_dataclasses import dataclass

DEVICE_ARENAS = "from argand.runtime.gpu.device.arena import device_arenas"


@dataclass(slots=True)
class ArenaText:
    """One device's arena.

    Arguments:
        device: whose memory it is.
        space: how large it is.
        sizes: size symbols of the call.
        index_text: a size as source code.
        views: tensors in the arena: name -> expression in `layout`.
        flag: it is needed for what belongs to an arena besides (the CPU's error flag, a GPU's workspace).
    """

    device: torch.device
    space: Space
    sizes: list[str]
    index_text: Callable[[Expr], str]
    views: dict[str, str] = field(default_factory=dict)
    flag: bool = False

    @property
    def suffix(self) -> str:
        """The end of its names."""
        return "" if self.device == CPU else "_" + str(self.device).replace(":", "_")

    @property
    def used(self) -> bool:
        """Whether the module needs it."""
        return bool(self.views) or self.flag

    def place(self, plan: MemoryPlan, root: str) -> str:
        """Where a buffer begins, as source code inside `layout`."""
        slot = plan.slot_of.get(root)
        return str(plan.offsets[root]) if slot is None else f"slot{slot}"

    def pool(self) -> list[str]:
        """The line that gets the pool; the CPU's is imported."""
        return (
            []
            if self.device == CPU or not self.used
            else [f"arena_pool{self.suffix} = device_arenas({str(self.device)!r})"]
        )

    def layout(self) -> list[str]:
        """Functions that make the tensors, and tell the size."""
        if not self.used:
            return []
        once = "once per arena and sizes" if self.sizes else "once per arena"
        lines = ["", f"def layout{self.suffix}({', '.join(['arena', *self.sizes])}):"]
        lines += [f'    """Tensors over the memory of temporaries, made {once}."""']
        for number, place in enumerate(self._places()[:-1]):
            lines.append(f"    slot{number} = {place}")
        lines += [f"    {name} = {expression}" for name, expression in self.views.items()]
        lines += [f"    return ({', '.join(self.views)}{',' if len(self.views) == 1 else ''})", ""]
        if not self.sizes:
            return lines
        lines += ["", f"def arena_bytes{self.suffix}({', '.join(self.sizes)}):"]
        lines += ['    """Memory that `layout` needs."""']
        for number, place in enumerate(self._places()[:-1]):
            lines.append(f"    slot{number} = {place}")
        return [*lines, f"    return {self._places()[-1]}", ""]

    def take(self) -> list[str]:
        """Lines of `call` that get an arena and its tensors."""
        if not self.used:
            return []
        end = self.suffix
        if self.sizes:
            place = f"key{end}"
            lines = [f"key{end} = (layout{end}, {', '.join(self.sizes)})"]
            lines.append(f"arena{end} = arena_pool{end}.take_sized(key{end}, arena_bytes{end})")
        else:
            place = f"layout{end}"
            lines = [f"arena{end} = arena_pool{end}.take({max(self.space.nbytes, 1)}, layout{end})"]
        if self.views:
            names = ", ".join(self.views) + ("," if len(self.views) == 1 else "")
            lines.append(f"{names} = arena{end}.views[{place}]")
        return lines

    def check(self) -> list[str]:
        """Lines that raise what kernels have flagged."""
        return ["if arena.flag.value:", "    arena.check()"] if self.flag and self.device == CPU else []

    def give(self) -> list[str]:
        """Lines that return the arena."""
        return [f"arena_pool{self.suffix}.give(arena{self.suffix})"] if self.used else []

    def _places(self) -> list[str]:
        """Where each slot begins, and where the last one ends, as source code."""
        space, unit = self.space, self.space.alignment
        begin = str(max(space.nbytes, 1) if not space.slots else space.aligned(space.nbytes))
        places = [begin]
        for number, size in enumerate(space.slots):
            places.append(f"slot{number} + ({self.index_text(size)} + {unit - 1}) // {unit} * {unit}")
        return places

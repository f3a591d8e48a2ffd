"""Writes the text of a host module."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

import torch

from argand.codegen.host import gpu, library_products
from argand.codegen.host.arenas import DEVICE_ARENAS, ArenaText
from argand.codegen.host.calls import CALL_NUMPY, LOAD_STEPS, as_linear, extern_function
from argand.codegen.host.convolutions import (
    FASTER_CONVOLUTION,
    MEASURED_CONVOLUTION,
    MEASURED_GRADIENT,
    MEASURED_VOLUME_GRADIENT,
    OWN_CONVOLUTION,
    OWN_GRADIENT,
    returns_result,
)
from argand.codegen.host.layouts import Layout, chosen_layouts, made_by_products, own_layout, used_views
from argand.codegen.host.library_products import DIRECT, DirectText, literal_of, operands
from argand.codegen.host.memory import MemoryPlan, Space, leaving_early, nbytes, plan_memory
from argand.codegen.host.products import INT8, INTO, MEASURED, OWN, PADDED, VARYING
from argand.errors import InternalError
from argand.graph.sizes.expr import Const, Expr, Sym, as_int, evaluate
from argand.ir.kernel import CPU, KernelPlan, Schedule, memory_of
from argand.ir.loops import Buffer, ExternNode, Origin, TensorRef, aliases_arguments
from argand.quick_dataclasses import dataclass
from argand.runtime.host import BY_ITSELF

if TYPE_CHECKING:
    from argand.codegen.triton.spec import KernelSpec, TritonSource

GPU_TENSORS = ("gpu_allocator()", "view_maker()")
_PRODUCTS = (OWN, VARYING, OWN_GRADIENT, MEASURED_GRADIENT)
LARGE_BYTES = 4 << 20  # of an allocation, from which malloc may get it from the system in each call: twice a large page


@dataclass(frozen=True, slots=True)
class KernelSource:
    """The compiled part of a host module.

    Arguments:
        text: C++ source of every kernel that is C++.
        symbols: kernel name -> C symbol.
        flagged: kernels that take the error flag as their last tensor.
        parts: the same functions as several files.
        triton: the other kernels, by device.
    """

    text: str
    symbols: Mapping[str, str]
    flagged: frozenset[str] = frozenset()
    parts: tuple[str, ...] = ()
    triton: Mapping[torch.device, TritonSource] = field(default_factory=dict)

    @property
    def written(self) -> str:
        """`text` as the host module has it, between its quotes."""
        return "\n" + self.text.rstrip("\n") + "\n"

    @property
    def all_text(self) -> str:
        """Source of every kernel, for those who read it."""
        return "\n".join(text for text in (self.text, *(source.text for source in self.triton.values())) if text)

    def spec(self, plan: KernelPlan) -> KernelSpec | None:
        """How a Triton kernel is launched; None for one in C++."""
        source = self.triton.get(plan.device)
        return source.specs.get(plan.name) if source is not None else None


def host_module(schedule: Schedule, kernels: KernelSource | None, *, arena: bool = True, title: str = "") -> str:
    """Text of the module that runs `schedule`.

    Arguments:
        schedule: ordered steps.
        kernels: their C++ source; None when there are none.
        arena: False allocates every temporary in each call.
        title: a comment at the top.
    """
    plan = plan_memory(schedule, arena=arena)
    return _Writer(schedule, kernels, plan, title).text()


def dtype_text(dtype: torch.dtype) -> str:
    """A dtype as source code."""
    return str(dtype)


def _on(device: torch.device) -> str:
    """The argument that makes a tensor on a device other than torch's default."""
    return f", device={str(device)!r}" if device != CPU else ""


def _random(size: tuple[int, ...], stride: tuple[int, ...], like: Buffer | torch.Tensor) -> str:
    """The expression for a random tensor."""
    return f"rand_strided({size}, {stride}, {dtype_text(like.dtype)}{_on(like.device)})"


def index_text(expr: Expr | int) -> str:
    """A size as Python source."""
    return str(expr)


def _tuple(items: Iterable[Expr | int]) -> str:
    texts = [index_text(item) for item in items]
    return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"


@dataclass(slots=True)
class _Writer:
    schedule: Schedule
    kernels: KernelSource | None
    plan: MemoryPlan
    title: str
    body: list[str] = field(default_factory=list)
    arenas: dict[torch.device, ArenaText] = field(default_factory=dict)
    views: dict[str, ArenaText] = field(default_factory=dict)  # tensors that are made once per arena
    header: dict[str, str] = field(default_factory=dict)  # module-level names -> expression
    constant_views: dict[str, str] = field(default_factory=dict)
    ref_names: dict[TensorRef, str] = field(default_factory=dict)
    view_count: int = 0
    adopted: set[str] = field(default_factory=set)  # buffers that took over another one's memory
    local_views: dict[str, list[TensorRef]] = field(default_factory=dict)  # by buffer: views that have names in `call`
    large: bool = False
    used: Mapping[TensorRef, int] = field(default_factory=dict)
    by_products: frozenset[str] = frozenset()
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    direct: DirectText = field(default_factory=DirectText)
    leaving: list[tuple[int, list[str]]] = field(default_factory=list)
    due: dict[int, list[str]] = field(default_factory=dict)  # buffers that are allocated before each step
    sharers: dict[str, list[tuple[int, str]]] = field(default_factory=dict)  # by root: who has its memory, in order

    def __post_init__(self) -> None:
        for name, before in self.plan.allocated.items():
            self.due.setdefault(before, []).append(name)
        for place, name in enumerate(self.plan.same_as):
            self.sharers.setdefault(memory_of(self.plan.same_as, name), []).append((place, name))

    @property
    def current(self) -> torch.device | None:
        """The device that the module makes the current one."""
        return gpu.current_device(self.kernels.triton) if self.kernels is not None else None

    def text(self) -> str:
        schedule = self.schedule
        self.used, self.by_products = used_views(schedule), made_by_products(schedule, self.plan)
        self.layouts = chosen_layouts(schedule, self.plan, self.by_products)
        for device, space in self.plan.spaces.items():
            self.arenas[device] = ArenaText(device, space, self._sizes(), index_text)
        self._symbols()
        if self.kernels is not None:
            self.body += gpu.choosing(self.kernels.triton)
        self.leaving = leaving_early(schedule) if schedule.arrivals else []
        unchecked = True
        for number, step in enumerate(schedule.steps):
            self._allocate(number)
            if unchecked and schedule.writes_to_input(step):
                unchecked = False
                self.body += [line for arena in self.arenas.values() for line in arena.check()]
            if isinstance(step, KernelPlan):
                self._launch(step)
            else:
                self._extern(step)
            self._free(self.plan.frees.get(number, ()))
            self._leave(number)
        self._allocate(len(schedule.steps))
        self._leave(len(schedule.steps))
        mutations = [f"{name}.copy_({self._ref(ref)})" for name, ref in schedule.mutations]
        returned = self._return()
        layouts = [line for arena in self.arenas.values() for line in arena.layout()]
        parts = (self._preamble(), self._constants(), layouts, self._call(mutations, returned), self._main())
        return "\n".join([*(line for part in parts for line in part), ""])

    # --- pieces of the module

    def _preamble(self) -> list[str]:
        used = self.header.values()
        lines = ["# " + line for line in self.title.splitlines()]
        lines += [
            "import torch",
            "from torch import as_strided",
            "from argand.runtime.host import arena_pool, benchmark, load_kernels, rand_strided, reinterpret, restrided",
            *(["from argand.runtime.ops import argand_ops"] if "argand_ops()" in str(self.header) else []),
            *(["from argand.runtime.host import double_bits"] if self.schedule.floats else []),
            *(["from argand.runtime.host import on_large_pages"] if self.large else []),
            *(["from argand.runtime.arena import kept_blocks"] if self.plan.reused and self.plan.blocks else []),
            *(["from argand.runtime.host import cpu_allocator"] if "new_tensor" in self.header else []),
            *([DEVICE_ARENAS] if any(arena.pool() for arena in self.arenas.values()) else []),
            *(f"from argand.runtime.gpu.device.tensors import {name[:-2]}" for name in GPU_TENSORS if name in used),
            *([library_products.LOADER] if self.direct.tables else []),
            *(gpu.imports(self.kernels.triton) if self.kernels is not None else ()),
            *(["from argand.runtime.host import on_device"] if self.current is not None else []),
            *([f"from argand.runtime.host import {INTO}"] if INTO in self.header.values() else []),
            *([f"from argand.runtime.gpu.operators.products import {PADDED}"] if PADDED in used else []),
            *([f"from argand.runtime.kernels.steps import {LOAD_STEPS}"] if LOAD_STEPS in str(used) else []),
            *([f"from argand.graph.operators.numpy_ops import {CALL_NUMPY}"] if CALL_NUMPY in str(used) else []),
            *([f"from argand.runtime.kernels.int8 import {INT8}"] if INT8 in used else []),
            *(f"from argand.runtime.kernels.products import {name}" for name in _PRODUCTS if name in used),
            *([f"from argand.runtime.kernels.products import {MEASURED}"] if f"{MEASURED}()" in used else []),
            *(f"from argand.runtime.kernels.convolutions import {name}" for name in _convolutions(used)),
            "",
        ]
        if self.kernels is not None and self.kernels.symbols:
            lines += [f"kernel_source = r'''{self.kernels.written}'''", ""]
            parts = "".join(f"\nr'''{part}'''," for part in self.kernels.parts)
            lines += [f"kernel_parts = ({parts})", ""] if parts else []
            table = self._kernel_table()
            targets = ", ".join(table)
            lines += ["kernels = {"]
            lines += [f"    {name!r}: {entry!r}," for name, entry in table.items()]
            lines += ["}"]
            lines += [f"[{targets}] = load_kernels(kernel_source, kernels{', kernel_parts' if parts else ''})", ""]
        lines += gpu.loading(self.kernels.triton, self.schedule.hints) if self.kernels is not None else []
        lines += self.direct.loading()
        lines += [f"{name} = {expression}" for name, expression in self.header.items()]
        lines += [line for arena in self.arenas.values() for line in arena.pool()]
        return [*lines, ""]

    def _constants(self) -> list[str]:
        constants = self.schedule.constants
        if not constants:
            return []
        lines = ["# Bound to the graph's constants when argand loads this module; random when it runs by itself."]
        lines += ["constants = globals().get('constants') or {"]
        for name, tensor in constants.items():
            lines += [f"    {name!r}: {_random(tuple(tensor.shape), tensor.stride(), tensor)},"]
        lines += ["}", *(f"{name} = constants[{name!r}]" for name in constants)]
        lines += [f"{name} = {expression}" for name, expression in self.constant_views.items()]
        return [*lines, ""]

    def _kernel_table(self) -> dict[str, tuple[str, int, int]]:
        assert self.kernels is not None  # the caller has checked
        table = {}
        for plan in self.schedule.kernels():
            if plan.name not in self.kernels.symbols:
                continue
            tensors = len(plan.inputs) + len(plan.outputs) + (plan.name in self.kernels.flagged)
            table[plan.name] = (self.kernels.symbols[plan.name], tensors, len(plan.symbols))
        return table

    def _sizes(self) -> list[str]:
        """Size symbols of the call."""
        return [name for name, _, _ in self.schedule.input_symbols if name not in self.schedule.floats]

    def _call(self, mutations: list[str], returned: str) -> list[str]:
        lines = ["", "def call(args):"]
        inputs = self.schedule.inputs
        if inputs:
            lines.append(f"    {', '.join(inputs)}{',' if len(inputs) == 1 else ''} = args")
            lines.append("    args.clear()")
        for arena in self.arenas.values():
            lines += [f"    {line}" for line in arena.take()]
            lines += [f"    {line}" for line in self.direct.take(arena.device, f"arena{arena.suffix}")]
        lines += [f"    {line}" for line in self.body]
        lines += [f"    {line}" for arena in self.arenas.values() for line in arena.check()]
        lines += [f"    {line}" for line in mutations]
        lines += [f"    {line}" for arena in self.arenas.values() for line in arena.give()]
        reused = self.plan.blocks if self.plan.reused else ()
        lines += [f"    kept_blocks.give(block{index}, {block.nbytes})" for index, block in enumerate(reused)]
        lines += [f"    return {returned}", ""]
        return [*lines, "", f"call = on_device(call, {str(self.current)!r})", ""] if self.current is not None else lines

    def _main(self) -> list[str]:
        env = {sym: self.schedule.hints.get(sym, 16) for sym, _, _ in self.schedule.input_symbols}
        lines = [BY_ITSELF, '    """Random inputs of the layouts that the graph was compiled for."""']
        lines.append("    return [")
        for name in self.schedule.inputs:
            buffer = self.schedule.buffers.get(name)
            if buffer is None:
                lines.append(f"        {1.5 if name in self.schedule.floats else env.get(name, 16)},  # {name}")
                continue
            size, stride = (tuple(_example(e, env) for e in part) for part in (buffer.size, buffer.stride))
            lines.append(f"        {_random(size, stride, buffer)},  # {name}")
        lines += ["    ]", "", "", 'if __name__ == "__main__":', "    benchmark(call, example_inputs)"]
        if self.schedule.arrivals:
            lines[-1] = "    benchmark(lambda args: tuple(call(args)), example_inputs)"
        return lines

    # --- statements of `call`

    def _symbols(self) -> None:
        for symbol, name, dim in self.schedule.input_symbols:
            if name:
                self.body.append(f"{symbol} = {name}.size({dim})")
        for symbol in sorted(self.schedule.floats & frozenset(self.schedule.inputs)):
            self.body.append(f"{symbol}_bits = double_bits({symbol})")

    def _empty(self, buffer: Buffer) -> str:
        size, stride = self.layouts.get(buffer.name, own_layout(buffer))
        if buffer.device.type != "cpu" and buffer.device == self.current:
            self.header["new_on_gpu"] = "gpu_allocator()"
            return f"new_on_gpu({_tuple(size)}, {_tuple(stride)}, {dtype_text(buffer.dtype)})"
        if buffer.device == CPU:
            self.header["new_tensor"] = "cpu_allocator()"
            return f"new_tensor({_tuple(size)}, {_tuple(stride)}, {dtype_text(buffer.dtype)})"
        # A method of a tensor of the right kind takes a third of the time of torch.empty_strided(..., dtype=...).
        name = f"new_{dtype_text(buffer.dtype).removeprefix('torch.')}_{str(buffer.device).replace(':', '_')}"
        like = f"torch.empty(0, dtype={dtype_text(buffer.dtype)}{_on(buffer.device)})"
        self.header[name] = f"{like}.new_empty_strided"
        return f"{name}({_tuple(size)}, {_tuple(stride)})"

    def _allocate(self, number: int) -> None:
        for index, block in enumerate(self.plan.blocks):
            if block.before == number and self.plan.reused:
                self.body.append(f"block{index} = kept_blocks.take({block.nbytes})")
            elif block.before == number:
                self.header["new_block"] = "torch.empty(0, dtype=torch.uint8).new_empty"
                self.large = self.large or block.nbytes >= LARGE_BYTES
                block_text = f"new_block({block.nbytes})"
                block_text = f"on_large_pages({block_text})" if block.nbytes >= LARGE_BYTES else block_text
                self.body.append(f"block{index} = {block_text}.untyped_storage()")
        for name in self.due.get(number, ()):
            if name not in self.by_products:
                self.body.append(f"{name} = {self._in_block(name) or self._new(self.schedule.buffers[name])}")

    def _new(self, buffer: Buffer) -> str:
        """The expression that allocates a buffer."""
        large = (nbytes(buffer) or 0) >= LARGE_BYTES and self.schedule.in_host_memory(buffer.name)
        self.large = self.large or large
        return f"on_large_pages({self._empty(buffer)})" if large else self._empty(buffer)

    def _in_block(self, name: str) -> str:
        """The expression for a buffer that lives in a block; "" for one that does not."""
        buffer = self.schedule.buffers[name]
        for index, block in enumerate(self.plan.blocks):
            if name in block.offsets:
                kind = dtype_text(buffer.dtype).removeprefix("torch.")
                self.header[f"empty_{kind}"] = f"torch.empty(0, dtype={dtype_text(buffer.dtype)}).new_empty"
                place = block.offsets[name] // buffer.dtype.itemsize
                return f"empty_{kind}(0).set_(block{index}, {place}, {_tuple(buffer.size)}, {_tuple(buffer.stride)})"
        return ""

    def _launch(self, plan: KernelPlan) -> None:
        if self.kernels is None:
            raise InternalError(f"the schedule has the kernel {plan.name}, but there is no kernel source")
        for name in plan.outputs:
            self._adopt(name)
        args = [self._buffer(name) for name in (*plan.inputs, *plan.outputs)]
        ints = [f"{symbol}_bits" if symbol in self.schedule.floats else symbol for symbol in plan.symbols]
        spec = self.kernels.spec(plan)
        if spec is not None:
            self.body += gpu.launching(plan, spec, args, ints, self._empty)
            return
        if plan.name in self.kernels.flagged:
            self.arenas.setdefault(CPU, ArenaText(CPU, Space(1), self._sizes(), index_text)).flag = True
            args.append("arena.error")
        self.body.append(f"{plan.name}({', '.join([*args, *ints])})")

    def _adopt(self, name: str) -> None:
        """`name`, when it is first written, takes over the memory of a buffer that is not needed any more."""
        taken = self.plan.same_as.get(name)
        if taken is None or name in self.adopted:
            return
        self.adopted.add(name)
        new, old = self.schedule.buffers[name], self.schedule.buffers[taken]
        root = memory_of(self.plan.same_as, taken)
        if self.plan.in_arena(root):
            self._arena_tensor(name, root)
            return
        size, stride = layout = self.layouts.get(name, own_layout(new))
        if layout == self.layouts.get(taken, own_layout(old)):
            self.body.append(f"{name} = {taken}")
        else:
            self.body.append(f"{name} = as_strided({taken}, {_tuple(size)}, {_tuple(stride)})")

    def _buffer(self, name: str) -> str:
        if self.plan.in_arena(name) and name not in self.views:
            self._arena_tensor(name, name)
        return name

    def _arena_tensor(self, name: str, root: str) -> None:
        buffer = self.schedule.buffers[name]
        arena = self.arenas[buffer.device]
        size, stride, dtype = _tuple(buffer.size), _tuple(buffer.stride), dtype_text(buffer.dtype)
        self._view(arena, name, f"arena.tensor({arena.place(self.plan, root)}, {size}, {stride}, {dtype})")

    def _view(self, arena: ArenaText, name: str, expression: str) -> None:
        """A tensor that is made once per arena."""
        if name in self.views:
            raise InternalError(f"two tensors of an arena are called {name}")
        arena.views[name] = expression
        self.views[name] = arena

    def _view_name(self, name: str) -> str:
        """A name that no other view ever had: those that are freed leave theirs to nobody."""
        self.view_count += 1
        return f"{name}_view{self.view_count - 1}"

    def _comment(self, origins: Iterable[Origin]) -> None:
        """What the call below computes: the FX nodes, each with the user's line."""
        for origin in origins:
            self.body.append(f"# {origin.comment}")

    def _extern(self, node: ExternNode) -> None:
        self._comment(node.origins)
        if node.out_variant == DIRECT:
            self._product(node)
            return
        node = as_linear(node, self.schedule.buffers) or node
        args = [self._value(arg, inside=not aliases_arguments(node)) for arg in node.args]
        args += [f"{key}={self._value(arg, inside=not aliases_arguments(node))}" for key, arg in node.kwargs.items()]
        function = extern_function(node)
        self.header.setdefault(function.name, function.expression)
        outputs = list(node.outputs)
        if not returns_result(node):
            first = outputs[0]
            if first is None:
                raise InternalError(f"{node.name} has an out= variant but no output buffer")
            if first in self.by_products:
                self.body.append(f"{first} = {function.name}({', '.join(args)})")
                return
            self._adopt(first)
            self.body.append(f"{function.name}({', '.join([*args, f'out={self._buffer(first)}'])})")
            return
        call = f"{function.name}({', '.join(args)})"
        if len(outputs) == 1 and not function.returns_tuple:
            target = outputs[0]
        else:
            target = ", ".join(name or "_" for name in outputs) + ("," if len(outputs) == 1 else "")
        self.body.append(f"{target} = {call}" if target else call)
        for name in outputs:
            if name is not None:
                self._check_layout(name)

    def _product(self, node: ExternNode) -> None:
        """A call of the library's product, which takes whatever tensors have the memory."""
        result = node.outputs[0]
        original = replace(node, out_variant=f"torch.{str(node.target).split('.')[1]}")
        literal = literal_of(original, self.schedule)
        if result is None or literal is None:
            raise InternalError(f"{node.name} is no product that goes to the library")
        self._adopt(result)
        device = self.schedule.buffers[result].device
        names = [self._buffer(ref.buffer) for ref in operands(node)] + [self._buffer(result)]
        names.append(self.direct.workspace(device))
        self.arenas.setdefault(device, ArenaText(device, Space(1), self._sizes(), index_text)).flag = True
        self.body.append(f"{self.direct.name(device, literal)}({', '.join(names)})")

    def _check_layout(self, name: str) -> None:
        """An ATen kernel may choose another layout than was predicted; kernels read memory as predicted."""
        buffer = self.schedule.buffers[name]
        size, stride = _tuple(buffer.size), _tuple(buffer.stride)
        if buffer.size:
            self.body.append(f"if {name}.stride() != {stride}: {name} = restrided({name}, {size}, {stride})")

    def _leave(self, number: int) -> None:
        """Outputs that nothing after this step uses leave."""
        while self.leaving and self.leaving[0][0] <= number:
            _, names = self.leaving.pop(0)
            group, _ = self.schedule.arrivals[-1 - len(self.leaving)]
            read = [name for name in self.schedule.inputs if self._is_read_after(name, number)]
            self.body.append(f"early = [{', '.join(self._value(self.schedule.outputs[place]) for place in group)}]")
            self._free(names)
            self.body.append(f"yield early, ({', '.join(read)}{',' if len(read) == 1 else ''})")

    def _is_read_after(self, name: str, number: int) -> bool:
        """Whether a step after this one reads an input that others may write to."""
        return name in self.schedule.seen and name in self.plan.live and self.plan.live[name].last > number

    def _free(self, names: Iterable[str]) -> None:
        if not names:
            return
        same = [name for _, name in sorted(one for root in set(names) for one in self.sharers.get(root, ()))]
        gone = [*names, *same]
        for ref in [ref for name in gone for ref in self.local_views.pop(name, ())]:
            gone.append(self.ref_names.pop(ref))
        self.body.append(f"del {', '.join(gone)}")

    def _return(self) -> str:
        values = []
        early = {place for group, _ in self.schedule.arrivals for place in group}
        for place, output in enumerate(self.schedule.outputs):
            values.append("None" if place in early else self._value(output))
        return f"({', '.join(values)}{',' if len(values) == 1 else ''})"

    # --- values

    def _ref(self, ref: TensorRef, *, inside: bool = False) -> str:
        """A tensor argument: the buffer, or a view of it (made once when the memory and the sizes are constant).

        Arguments:
            inside: only ATen kernels see it.
        """
        name = self._buffer(ref.buffer)
        buffer = self.schedule.buffers[ref.buffer]
        if (ref.size, ref.stride) == self.layouts.get(ref.buffer, own_layout(buffer)):
            if as_int(ref.offset) == 0 and ref.dtype in (None, buffer.dtype):
                return name
        known = self.ref_names.get(ref)
        if known is not None and (inside or name in self.views or ref.buffer in self.schedule.constants):
            return known
        dtype = ref.dtype or buffer.dtype
        size, stride = _tuple(ref.size), _tuple(ref.stride)
        if dtype is not buffer.dtype:
            expression = f"reinterpret({name}, {dtype_text(dtype)}, {size}, {stride}, {index_text(ref.offset)})"
        else:
            offset = ""
            if as_int(ref.offset) != 0:
                offset = f", {name}.storage_offset() + {index_text(ref.offset)}"
            expression = f"as_strided({name}, {size}, {stride}{offset})"
            if inside and name not in self.views and not self.schedule.in_host_memory(ref.buffer):
                self.header["view_of"] = "view_maker()"
                expression = f"view_of({name}, {size}, {stride}, {index_text(ref.offset)})"
        static = all(as_int(e) is not None for e in (*ref.size, *ref.stride, ref.offset))
        if name in self.views:
            view = self._view_name(name)
            self._view(self.views[name], view, expression)
            self.ref_names[ref] = view
            return view
        if static and ref.buffer in self.schedule.constants:
            view = self._view_name(name)
            self.constant_views[view] = expression
            self.ref_names[ref] = view
            return view
        if inside and self.used[ref] > 1:
            view = self._view_name(name)
            self.body.append(f"{view} = {expression}")
            self.local_views.setdefault(name, []).append(ref)
            self.ref_names[ref] = view
            return view
        return expression

    def _value(self, value: Any, *, inside: bool = False) -> str:
        if isinstance(value, TensorRef):
            return self._ref(value, inside=inside)
        if isinstance(value, Const):
            return str(value.value)
        if isinstance(value, Expr):
            return index_text(value)
        if isinstance(value, list):
            return f"[{', '.join(self._value(item, inside=inside) for item in value)}]"
        if isinstance(value, tuple):
            inner = ", ".join(self._value(item, inside=inside) for item in value)
            return f"({inner}{',' if len(value) == 1 else ''})"
        if isinstance(value, dict):
            return "{" + ", ".join(f"{k!r}: {self._value(v, inside=inside)}" for k, v in value.items()) + "}"
        if isinstance(value, float) and not math.isfinite(value):
            return f"float({str(value)!r})"
        if isinstance(value, torch.device):
            return f"torch.device({str(value)!r})"
        if value is None or isinstance(value, (bool, int, float, str)):
            return repr(value)
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return str(value)
        if isinstance(value, complex):
            return f"complex({self._value(value.real)}, {self._value(value.imag)})"
        raise InternalError(f"an extern call has an argument of type {type(value).__name__}, which has no source text")


def _convolutions(used: Iterable[str]) -> list[str]:
    """Names of `runtime.kernels.convolutions` that expressions use."""
    text = " ".join(used)
    names = (MEASURED_CONVOLUTION, OWN_CONVOLUTION, MEASURED_VOLUME_GRADIENT, FASTER_CONVOLUTION.partition("(")[0])
    return [name for name in names if name in text]


def _example(expr: Expr, env: Mapping[str, int]) -> int:
    names = {atom.name: env.get(atom.name, 16) for atom in expr.free if isinstance(atom, Sym)}
    return int(evaluate(expr, names))

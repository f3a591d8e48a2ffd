"""Programs of inference whose parameters and buffers are taken for constants: options "freezing" and "quantization".

Batch norms become part of the weights before them, weights are laid out once for oneDNN, and whatever else follows from
parameters alone is computed once; or, and also, weights of products become integers of 8 bits. The program that is left
gets these values as inputs: it holds no parameters, so that it is shared and stored as any other.
`runtime.frozen_parameters` computes them anew when a parameter has changed.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from math import isnan
from typing import Any

import torch
from torch import fx

from argand import events
from argand.backends.eager import run_eagerly
from argand.backends.targets import target_of
from argand.config import config
from argand.graph.nodes.meta import mark_guess
from argand.graph.nodes.program import AtenProgram, copied
from argand.lower.lowerings.depthwise import becomes_loops, is_depthwise
from argand.passes import run_passes
from argand.passes.channels_last import convolutions, lay_out
from argand.passes.freezing.batch_norms import fold_batch_norms
from argand.passes.freezing.constant_split import constant_nodes, part
from argand.passes.freezing.packing import pack
from argand.passes.freezing.quantizing import quantize
from argand.quick_dataclasses import dataclass
from argand.runtime import cache, process, processor
from argand.runtime.frozen_parameters import FrozenCall, storable
from argand.runtime.gpu.device.timing import can_time, random_tensor, time_calls
from argand.runtime.host import HostCall
from argand.runtime.kernels import int8, products
from argand.runtime.kernels.packed_weights import has_packing, packed_ops

aten = torch.ops.aten
Compile = Callable[[AtenProgram], HostCall]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is made of constants.

    Arguments:
        freezing: all that follows from parameters alone.
        quantization: one of `registry.QUANTIZATIONS`, or "": weights of products.
    """

    freezing: bool
    quantization: str = ""


_GAIN = 0.95  # of the time of what else there is that a packed product may take


def constant_arguments(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> frozenset[int]:
    """Arguments of a captured graph that are parameters or buffers of modules."""
    constant = set()
    for index, (node, value) in enumerate(zip(gm.graph.find_nodes(op="placeholder"), example_inputs)):
        if not isinstance(value, torch.Tensor):
            continue
        source = str(node.meta.get("source", ""))
        if isinstance(value, torch.nn.Parameter) or "._buffers[" in source:
            constant.add(index)
    return frozenset(constant)


def compile_frozen(
    program: AtenProgram, constant: frozenset[int], compile_program: Compile, wanted: Wanted
) -> HostCall:
    """A callable for a program of inference.

    Arguments:
        constant: arguments of the program's call that are taken for constants.
        compile_program: makes a callable of a program.
    """
    positions = _positions(program, constant)
    reason = _refusal(program, wanted)
    if reason:
        scope = "quantization" if wanted.quantization else "freezing"
        events.emit("fallback", "backend", reason, backend="native", scope=scope, reason=reason)
    if reason or not positions or program.kind != "inference":
        return compile_program(program)
    with events.span("freezing", "backend", parameters=len(positions)):
        rest = copied(program)
        rest = rest if rest.scalars else run_passes(rest)  # one for many sizes is made of traces that went through them
        first, read = _parted(rest, positions, wanted)
    if first is None:
        return compile_program(program)
    plain = functools.partial(compile_program, program)
    kept = [position for position in positions if position in read]
    frozen = FrozenCall(kept, run_eagerly(first), compile_program(rest), plain)
    return storable(frozen, fx.GraphModule(dict(first.constants), first.graph).forward)


def _refusal(program: AtenProgram, wanted: Wanted) -> str:
    """Why a program is compiled as without the options; "" where there is no reason."""
    if program.kind != "inference":
        if wanted.quantization:
            _warn_of_gradients()
            return "graphs that record gradients keep their weights"
        return ""
    if config.check_numerics:
        return "kernels are checked one by one"
    return "sizes are symbols" if program.scalars and not wanted.quantization else ""


@functools.cache
def _warn_of_gradients() -> None:
    """Once a process."""
    warnings.warn(
        "argand: quantization is for inference: a graph that records gradients keeps its weights. Call it under "
        "torch.no_grad() or torch.inference_mode().",
        stacklevel=2,
    )


def _positions(program: AtenProgram, constant: frozenset[int]) -> list[int]:
    """Inputs that are constant: no graph writes to them, or to memory that they share."""
    written = {mutation.input for mutation in program.mutations}
    written.update(member for base in program.bases for member in base.members)
    return [
        position
        for position, spec in enumerate(program.inputs)
        if spec.kind == "arg" and spec.index in constant and position not in written
    ]


def _parted(
    program: AtenProgram, positions: Sequence[int], wanted: Wanted
) -> tuple[AtenProgram | None, frozenset[int]]:
    """Rewrite a program in place for inputs that are constant.

    Returns:
        what is computed of these, and which of them it reads.
    """
    constant = constant_nodes(program, positions)
    if wanted.quantization:
        quantized = quantize(program, constant, dynamic=wanted.quantization == "int8_dynamic")
        layers = dict(quantized.layers), dict(quantized.left)
        events.emit(
            "quantization", "passes", lambda: str(quantized), mode=wanted.quantization, layers=layers[0], left=layers[1]
        )
        if quantized.layers:
            int8.prepare()
        constant = quantized.constant
    if wanted.freezing and not program.scalars:
        constant = _frozen(program, positions)
    constants_program = part(program, constant)
    return constants_program, _read(constants_program) if constants_program is not None else frozenset()


def _read(program: AtenProgram) -> frozenset[int]:
    """Inputs of a program that it reads."""
    return frozenset(position for position, node in enumerate(program.placeholders) if node.users)


def _frozen(program: AtenProgram, positions: Sequence[int]) -> set[fx.Node]:
    """Fold and pack what is constant; returns the nodes that are."""
    fold_batch_norms(program, constant_nodes(program, positions))
    if has_packing() and not torch.are_deterministic_algorithms_enabled():
        images = [node for node in convolutions(program) if node.meta["device"].type == "cpu"]
        lay_out(program, [node for node in images if node.meta["val"].dtype is torch.float32], weights=False)
        pack(program, constant_nodes(program, positions), _Choice().packs)
    return constant_nodes(program, positions)


class _Choice:
    """Which convolutions and products oneDNN computes with packed weights."""

    def __init__(self) -> None:
        self._faster: dict[Any, bool] = {}

    def packs(self, node: fx.Node) -> bool:
        """Whether a convolution or a product is to be oneDNN's."""
        if node.target is aten.convolution.default:
            x, weight = (arg.meta["val"] for arg in node.args[:2])
            depthwise = is_depthwise(x.shape, weight.shape, bool(node.args[6]), node.args[8])
            return not (depthwise and becomes_loops(target_of(node.meta["device"]), x.dtype, weight.shape[2:], True))
        *bias, x, weight = node.args
        key = (tuple(x.meta["val"].shape), tuple(weight.meta["val"].shape), weight.meta["val"].stride(), bool(bias))
        if key not in self._faster:
            self._faster[key] = _is_faster(node, key)
        return self._faster[key]


def _is_faster(node: fx.Node, key: Any) -> bool:
    """Whether a product with a packed weight is faster than ATen's and argand's own: timed once, and remembered."""
    about = (key, products.own_wanted(products.PRODUCTS), processor.model(), torch.__version__, torch.get_num_threads())
    name = f"packed-{cache.digest(str(about))}-calm"
    note = cache.read_note(name)
    if note is not None and note.get("packed") in ("faster", "slower"):
        return note["packed"] == "faster"
    if not can_time():
        return False
    device: torch.device = node.meta["device"]
    with events.span("time_products", "backend", product=str(key)):
        times = time_calls(_ways(node), device)
    faster = times[0] < _GAIN * min(times[1:])
    outcome = "faster" if faster else "slower"
    if isnan(times[0]):
        mark_guess(node)
    if isnan(times[0]) or process.compiling():  # not known, or good enough for now
        return faster
    cache.write_note(name, {"packed": outcome, "times": str([round(each, 1) for each in times])})
    return faster


def _ways(node: fx.Node) -> list[Callable[[], object]]:
    """A product of random numbers with its weight packed, by ATen, and by argand's own kernel where that may be."""
    operands = [_random(arg) for arg in node.args]
    *bias, x, weight = operands
    ops, row = packed_ops(), bias[0] if bias else None
    packed = ops.pack_linear(weight.t().contiguous(), x.shape[0])
    out = x.new_empty((x.shape[0], weight.shape[1]))
    ways: list[Callable[[], object]] = [
        lambda: torch.ops.mkldnn._linear_pointwise.default(x, packed, row, "none", [], ""),
        lambda: node.target(*operands),
    ]
    if products.own_wanted(products.PRODUCTS):
        ways.append(lambda: products.matrix_product(*operands, out=out))
    return ways


def _random(node: Any) -> torch.Tensor:
    val: torch.Tensor = node.meta["val"]
    return random_tensor(val.shape, val.stride(), val.dtype, node.meta["device"])

"""Tracing `flex_attention`: one operator where a device has kernels for it, ordinary operations elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from argand import events
from argand.autograd.recording.values import TraceTensor
from argand.autograd.tracing import inference, joint
from argand.codegen.triton.functions import helpers_of
from argand.codegen.triton.score_mods import Mod, NotPrintable, print_mod
from argand.config import config
from argand.errors import ArgandError, GpuError
from argand.graph import compat
from argand.graph.nodes.meta import eliminate_dead
from argand.graph.nodes.program import AtenProgram, TensorSpec
from argand.graph.operators import flex
from argand.lower import lower
from argand.passes import run_passes
from argand.quick_dataclasses import dataclass
from argand.runtime.gpu.device.target import gpu_problem
from argand.runtime.gpu.operators.flex import Flex, flex_ops, prepare, refusal

_LARGEST = 1 << 30  # a side of torch's block mask of everything
_LIST_FIELDS = ((2, 3, 4, 5), (6, 7, 8, 9))  # of a block mask: counts and blocks, by query and by key


def stands_for(score: Any, mask: Any, *tensors: torch.Tensor) -> Any:
    """The results of `graph.operators.flex.flex_attention` as one operator; None where it is to be spelt out."""
    call: flex.FlexCall = score.meta["call"]
    query = tensors[0]
    if query.__class__ is not TraceTensor or call.greatest or not _has_kernels(query.device):
        return None
    try:
        kernel = _Kernel(score, mask, call, tensors)
    except NotPrintable as why:
        events.emit("fallback", "autograd", str(why), op="flex_attention", reason=str(why))
        return None
    out, logs = _Attention.apply(kernel.flex, kernel.lists, kernel.reads, *kernel.operands)
    return flex.laid_out(out, query.stride()), logs, logs.detach()


def _has_kernels(device: torch.device) -> bool:
    return config.triton.on_cpu if device.type == "cpu" else gpu_problem(str(device)) is None


class _Kernel:
    """A call as the operator takes it.

    Raises:
        NotPrintable: there is no kernel for it.
    """

    def __init__(self, score: Any, mask: Any, call: flex.FlexCall, tensors: Sequence[torch.Tensor]) -> None:
        self.operands = [t if t.stride(-1) == 1 else _rows(t) for t in tensors[:3]]
        query, key, value = self.operands
        info = [tensors[field.index] if type(field) is flex.At else field for field in call.mask_info]
        block = (int(info[-2]), int(info[-1]))
        everything = block == (_LARGEST, _LARGEST)
        block = (0, 0) if everything else block
        self.reads = [tensors[i].contiguous() for i in (*call.score, *call.mask)]
        needs = torch.is_grad_enabled()
        if needs and any(read.requires_grad for read in self.reads):
            raise NotPrintable("the gradient of a tensor that a function of scores reads")
        problem = refusal(query, key, value, block, self.reads)
        if problem:
            raise NotPrintable(problem)
        self.lists = [] if everything else _lists(info, query)
        gradient = needs and any(tensor.requires_grad for tensor in tensors[:3])
        mods = _printed(score, mask, call, query, key, self.reads, gradient)
        scored, masked = not mods[0].passes, mods[1].known is not True
        used = [*([mods[0], *mods[2:]] if scored else []), *([mods[1]] if masked else [])]
        text = "\n\n".join(mod.text for mod in used)
        text = f"{helpers_of(text)}\n\n{text}" if helpers_of(text) else text
        self.flex = Flex(text, call.scale, block, scored, masked, any(mod.checks for mod in used))
        try:
            prepare(self.operands, self.lists, self.reads, _plain(self.flex), gradient)
        except GpuError as error:
            raise NotPrintable(f"the GPU refuses its kernel: {error}") from error


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """An operand with the numbers of a row side by side, as kernels read it."""
    laid_out: torch.Tensor = flex.GradientLaidOut.apply(tensor, tensor.stride())
    return laid_out.contiguous()


def _lists(info: Sequence[Any], query: torch.Tensor) -> list[torch.Tensor]:
    """The lists of blocks: by query, then by key."""
    lists = []
    for fields in _LIST_FIELDS:
        tensors = [info[i] for i in fields]
        kept = [tensor for tensor in tensors if tensor is not None]
        if len(kept) != (2 if tensors[2] is None else 4) or any(t.dtype is not torch.int32 for t in kept):
            raise NotPrintable("a block mask without all of its lists")
        for count, blocks in zip(kept[::2], kept[1::2]):
            shared = blocks.dim() == 4 and all(n in (1, have) for n, have in zip(blocks.shape, query.shape[:2]))
            if not shared or count.shape != blocks.shape[:3]:
                raise NotPrintable("the sizes of a block mask's lists")
        if len({tuple(blocks.shape) for blocks in kept[1::2]}) != 1:
            raise NotPrintable("the sizes of a block mask's lists")
        lists += [tensor.contiguous() for tensor in kept]
    if len(lists) not in (4, 8):
        raise NotPrintable("a block mask without all of its lists")
    return lists


# ---------------------------------------------------------------------- functions


def _printed(
    score: Any, mask: Any, call: flex.FlexCall, query: torch.Tensor, key: torch.Tensor, reads: Sequence[torch.Tensor],
    gradient: bool,
) -> list[Mod]:  # fmt: skip
    """The functions as Triton text: of the score, of positions, and maybe the score's gradient."""
    size = (*query.shape[:3], key.shape[2])
    count = len(call.score)
    takes = [f"read{number}" for number in range(len(reads))]
    matrix = _Given("scores", size, torch.float32, query.device)
    given = [_Given(name, tuple(t.shape), t.dtype, t.device) for name, t in zip(takes, reads)]
    with compat.without_modes(), torch.no_grad(), torch.autocast(query.device.type, enabled=False):
        score_gm = _whole(score, [matrix, *given[:count]], size, query.device)
        mask_gm = _whole(mask, given[count:], size, query.device)
        printed = [
            _print("score_mod", _traced(score_gm, [matrix, *given[:count]]), {0: "score"}, takes, takes[:count]),
            _print("mask_mod", _traced(mask_gm, given[count:]), {}, takes, takes[count:]),
        ]
        if gradient and not printed[0].passes:
            program = _differentiated(score_gm, [matrix, *given[:count]])
            blocks = {0: "score", count + 1: "grad"}
            printed.append(_print("score_grad", program, blocks, takes, takes[:count]))
    return printed


@dataclass(frozen=True, slots=True)
class _Given:
    """What a function is given: the matrix of scores, or a tensor that it reads."""

    name: str
    size: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def example(self, grad: bool = False) -> torch.Tensor:
        return torch.empty((), dtype=self.dtype, device=self.device, requires_grad=grad)

    def spec(self, grad: bool = False) -> TensorSpec:
        stride = torch.empty(self.size, device="meta").stride()
        return TensorSpec(self.size, stride, 0, self.dtype, self.device, grad)


def _whole(body: Any, given: Sequence[_Given], size: tuple[int, ...], device: torch.device) -> fx.GraphModule:
    """A function of one score, or of its position, as a graph of the whole matrix."""
    scored = bool(given) and given[0].name == "scores"

    def run(*tensors: torch.Tensor) -> torch.Tensor:
        positions = [torch.arange(n, device=device) for n in size]
        scores, reads = (tensors[0], tensors[1:]) if scored else (None, tensors)
        matrix = flex.everywhere(flex.only(body), scores, positions, reads)
        return matrix.expand(size).clone(memory_format=torch.contiguous_format)

    graph = fx.Graph()
    arguments = tuple([graph.placeholder(one.name) for one in given])
    graph.output((graph.call_function(run, arguments),))
    return fx.GraphModule({}, graph)


def _traced(gm: fx.GraphModule, given: Sequence[_Given]) -> AtenProgram:
    layouts = {number: one.spec() for number, one in enumerate(given)}
    try:
        return inference.trace(gm, [one.example() for one in given], layouts)
    except ArgandError as error:
        raise NotPrintable(str(error)) from error


def _differentiated(gm: fx.GraphModule, given: Sequence[_Given]) -> AtenProgram:
    """The gradient with respect to the score, as a graph of the whole matrix."""
    layouts = {number: one.spec(number == 0) for number, one in enumerate(given)}
    try:
        with torch.enable_grad():
            traced = joint.trace(gm, [one.example(i == 0) for i, one in enumerate(given)], layouts)
    except ArgandError as error:
        raise NotPrintable(str(error)) from error
    if traced.gradients != (0,):
        raise NotPrintable("a score that has no gradient")
    program = traced.program
    output = next(iter(reversed(program.graph.nodes)))
    output.args = (tuple(output.args[0][traced.results :]),)
    output.meta["val"] = tuple([node.meta["val"] for node in output.args[0]])
    program.outputs = []
    eliminate_dead(program.graph)
    return program


def _print(name: str, program: AtenProgram, blocks: dict[int, str], takes: Sequence[str], own: Sequence[str]) -> Mod:
    """A function as Triton text.

    Arguments:
        blocks: inputs that are matrices of scores -> the arguments that they become.
        takes: what all functions read, in the order of their arguments; `own`: what this one does.
    """
    try:
        loops = lower(run_passes(program), inline=True)
    except ArgandError as error:
        raise NotPrintable(str(error)) from error
    names = loops.inputs
    rest = iter(own)
    pointers = {names[i]: f"{next(rest)}_ptr" for i in range(len(names)) if i not in blocks}
    unused = {one: f"{one}_ptr" for one in takes if f"{one}_ptr" not in pointers.values()}
    ordered = dict(sorted({**pointers, **unused}.items(), key=lambda item: takes.index(item[1].removesuffix("_ptr"))))
    return print_mod(name, loops, {names[i]: argument for i, argument in blocks.items()}, ordered)


# ---------------------------------------------------------------------- gradients


class _Attention(torch.autograd.Function):
    """`argand::flex_attention` and its backward, for autograd above the tracer."""

    @staticmethod
    def forward(
        ctx: Any, call: Flex, lists: list[torch.Tensor], reads: list[torch.Tensor], *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.call, ctx.others = call, (lists, reads)
        results: tuple[torch.Tensor, torch.Tensor] = flex_ops().flex_attention(*tensors, lists, reads, *_plain(call))
        ctx.save_for_backward(*tensors, *results)
        return results

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        query, key, value, out, logs = ctx.saved_tensors
        lists, reads = ctx.others
        grad = grads[0] if grads[0].stride(-1) == 1 else grads[0].contiguous()
        # the logarithms that come out are of base 2
        delta = (out.float() * grad.float()).sum(-1) - grads[1] * flex.LOG2E
        gradients = flex_ops().flex_attention_backward(
            grad, logs, delta.contiguous(), query, key, value, lists, reads, *_plain(ctx.call)
        )  # fmt: skip
        return None, None, None, *gradients


def _plain(call: Flex) -> tuple[Any, ...]:
    return call.mods, call.scale, list(call.block), call.scored, call.masked, call.checks

"""Higher-order operators of torch as plain programs over tensors; interpreted in place of the operator."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.autograd import functional
from torch.overrides import TorchFunctionMode

from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.torch_functions import hops, modes


def _leaves(tree: object) -> list[torch.Tensor]:
    if isinstance(tree, list | tuple):
        leaves = []
        for item in tree:
            leaves.extend(_leaves(item))
        return leaves
    if isinstance(tree, dict):
        leaves = []
        for key in sorted(tree):
            leaves.extend(_leaves(tree[key]))
        return leaves
    return [tree]


def _rebuild(tree: object, leaves: list[object]) -> object:
    """`tree` with its leaves taken from the front of `leaves`."""
    if isinstance(tree, list):
        return [_rebuild(item, leaves) for item in tree]
    if isinstance(tree, tuple):
        return tuple([_rebuild(item, leaves) for item in tree])
    if isinstance(tree, dict):
        return {key: _rebuild(tree[key], leaves) for key in sorted(tree)}
    return leaves.pop(0)


def without_gradients(owner: torch.nn.Module | torch.optim.Optimizer) -> bool:
    """`zero_grad()` of a module or optimizer: it is not asked which gradients there were, so that no guard asks."""
    if isinstance(owner, torch.optim.Optimizer):
        params = [param for group in owner.param_groups for param in group["params"]]
    elif getattr(owner, "_is_replica", False):
        return False
    else:
        params = list(owner.parameters())
    for param in params:
        param.grad = None
    return True


def compiled(model: Any) -> object:
    """What a compiler makes of a function, where the graph holds what the function does."""

    @functools.wraps(model)
    def call(*args: object, **kwargs: object) -> object:
        return model(*args, **kwargs)

    return call


def compiling(compile_: Function, options: dict[str, object]) -> object:
    """torch.compile or argand.compile (`compile_`) with options alone, for use as a decorator."""

    def decorate(model: Any) -> object:
        return compile_(model, **options)

    return decorate


def associative_scan(
    combine_fn: Function, xs: object, dim: int, reverse: bool = False, combine_mode: str = "pointwise"
) -> object:
    """Inclusive scan of `combine_fn` over `dim` in log2(length) steps."""
    leaves = _leaves(xs)
    if reverse:
        leaves = [torch.flip(leaf, [dim]) for leaf in leaves]
    length = leaves[0].shape[dim]
    step = 1
    while step < length:
        left = [torch.narrow(leaf, dim, 0, length - step) for leaf in leaves]
        right = [torch.narrow(leaf, dim, step, length - step) for leaf in leaves]
        combined = _leaves(combine_fn(_rebuild(xs, left), _rebuild(xs, right)))
        leaves = [
            torch.cat([torch.narrow(leaf, dim, 0, step), new], dim) for leaf, new in zip(leaves, combined, strict=True)
        ]
        step = step * 2
    if reverse:
        leaves = [torch.flip(leaf, [dim]) for leaf in leaves]
    return _rebuild(xs, leaves)


def cond(pred: bool, true_fn: Function, false_fn: Function, operands: Args = ()) -> object:
    """torch.cond with a condition that is known."""
    return true_fn(*operands) if pred else false_fn(*operands)


def vjp(func: Function, *primals: object, has_aux: bool = False) -> object:
    """torch.func.vjp: the value now, the gradients by a second run of `func` when they are asked for."""
    results = func(*primals)

    def pull(cotangents: object, retain_graph: bool = True, create_graph: bool | None = None) -> object:
        return hops.pullback(func, primals, has_aux, cotangents)

    if has_aux:
        output, aux = results
        return output, pull, aux
    return results, pull


def linearize(func: Function, primals: Args) -> object:
    """torch.func.linearize: the value now, tangents by a run of `func` with them."""
    results = func(*primals)

    def push(*tangents: object) -> object:
        return hops.pushforward(func, primals, tangents)

    return results, push


def jacobian_forward(func: Function, inputs: object) -> object:
    """torch.autograd.functional.jacobian with strategy="forward-mode": what torch.func.jacfwd gives."""
    several, given = functional._as_tuple(inputs, "inputs", "jacobian")

    def checked(*args: object) -> object:
        outputs = func(*args)
        functional._as_tuple(outputs, "outputs")
        return outputs

    columns = torch.func.jacfwd(checked, tuple(range(len(given))))(*given)
    one = isinstance(columns[0], torch.Tensor)
    rows = [list(row) for row in ((columns,) if one else columns)]
    return functional._tuple_postprocess(rows, (not one, several))


def hessian_forward(func: Function, inputs: object) -> object:
    """torch.autograd.functional.hessian with outer_jacobian_strategy="forward-mode", which records gradients of inputs
    that require none."""
    several, given = functional._as_tuple(inputs, "inputs", "hessian")
    leaves = [each if each.requires_grad else each.detach().requires_grad_() for each in given]
    numbers = tuple(range(len(leaves)))

    def scalar(*args: object) -> object:
        output = func(*args)
        is_tuple, _ = functional._as_tuple(output, "outputs of the user-provided function", "hessian")
        if is_tuple or output.nelement() != 1:
            raise RuntimeError("torch.autograd.functional.hessian takes functions that give one number")
        return output.squeeze()

    rows = torch.func.jacfwd(torch.func.jacrev(scalar, numbers), numbers)(*leaves)
    return functional._tuple_postprocess([list(row) for row in rows], (several, several))


@contextlib.contextmanager
def sdpa_kernel(backends: object, set_priority: bool = False) -> Iterator[object]:
    """torch.nn.attention.sdpa_kernel: the flags as they were afterwards."""
    before = modes.attention_flags(bool(set_priority))
    try:
        modes.select_attention(backends, set_priority)
        yield {}
    finally:
        modes.write_flags(before)


def scan(combine_fn: Function, init: object, xs: object, *, dim: int = 0, reverse: bool = False) -> object:
    """torch's scan, whose results are stacked in the dimension of the rows."""
    leaves = [torch.movedim(leaf, dim, 0) for leaf in _leaves(xs)] if dim else _leaves(xs)
    if reverse:
        leaves = [torch.flip(leaf, [0]) for leaf in leaves]
    carry, out = hops.scanned(combine_fn, init, _rebuild(xs, leaves))
    columns = [torch.flip(column, [0]) for column in _leaves(out)] if reverse else _leaves(out)
    if dim:
        columns = [torch.movedim(column, 0, dim) if dim < column.dim() else column for column in columns]
    return carry, _rebuild(out, columns)


def map_rows(f: Function, xs: object, *args: object) -> object:
    """torch's map: `f` of each row."""
    return hops.scanned(lambda carry, row: (carry, f(row, *args)), (), xs)[1]


def step_by_step(function: Function, init: object, xs: object) -> object:
    """`hops.scanned` as that many copies of the function."""
    leaves = _leaves(xs)
    carry, outs = init, []
    for step in range(leaves[0].shape[0]):
        carry, out = function(carry, _rebuild(xs, [leaf[step] for leaf in leaves]))
        outs.append(out)
    columns = [_leaves(out) for out in outs]
    stacked = [torch.stack([column[i] for column in columns]) for i in range(len(columns[0]))]
    return carry, _rebuild(outs[0], stacked)


class PositionsInTensors(TorchFunctionMode):
    """Where 0-d tensors are positions: `x[i, j]` looks an element up, and reads neither of the two as a number."""

    def __torch_function__(
        self, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        if func is torch.Tensor.__getitem__:
            tensor, given = args
            positions = list(given) if isinstance(given, tuple | list) else [given]
            if all(isinstance(at, torch.Tensor | int) and not isinstance(at, bool) for at in positions):
                return look_up(tensor, positions)
        return func(*args, **(kwargs or {}))


def look_up(tensor: torch.Tensor, positions: Sequence[object]) -> object:
    """The part of a tensor at positions in its first dimensions."""
    device = tensor.device
    places = [at if isinstance(at, torch.Tensor) else torch.full((), at, device=device) for at in positions]
    return torch.ops.aten.index.Tensor(tensor, places)


def flex_mod(function: Function, *args: object) -> object:
    """A function that flex_attention is given, called as torch calls it."""
    with PositionsInTensors():
        return function(*args)


def flex_mask_of_everything(cls: Any, device: torch.device) -> object:
    """The block mask that torch makes where there is none: one block, seen by all; without computing that."""
    ones = torch.ones([1, 1, 1], dtype=torch.int32, device=device)
    zeros = torch.zeros([1, 1, 1, 1], dtype=torch.int32, device=device)
    mask = cls.from_kv_blocks(ones, zeros, BLOCK_SIZE=1 << 30, seq_lengths=(1, 1), compute_q_blocks=False)
    mask.q_num_blocks, mask.q_indices = ones, zeros
    return mask


def ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> torch.Tensor:
    """torch.ctc_loss with lengths that are tensors, of tensors on the CPU."""
    several = log_probs if log_probs.dim() == 3 else log_probs.unsqueeze(1)
    slopes = log_probs.requires_grad and torch.is_grad_enabled()
    losses = torch.ops.argand.ctc_losses(several, targets, input_lengths, target_lengths, blank, zero_infinity, slopes)[
        0
    ]
    if zero_infinity:
        losses = torch.where(losses == float("inf"), 0.0, losses)
    if reduction == 1:
        return (losses / target_lengths.to(losses.dtype).clamp_min(1)).mean()
    if reduction == 2:
        return losses.sum()
    return losses if log_probs.dim() == 3 else losses.squeeze(0)


def size(self: torch.Tensor, dim: int | None = None) -> object:
    """torch.ops.aten.size, which gives a list."""
    return list(self.shape) if dim is None else self.size(dim)


def stride(self: torch.Tensor, dim: int | None = None) -> object:
    """torch.ops.aten.stride, which gives a list."""
    return list(self.stride()) if dim is None else self.stride(dim)


def nothing() -> object:
    """A context without an effect."""
    return contextlib.nullcontext()


def padded_encoder_layer(
    forward: Function,
    first_layer: torch.nn.Module,
    src: torch.Tensor,
    layer: torch.nn.Module,
    x: torch.Tensor,
    src_key_padding_mask: torch.Tensor,
    **options: object,
) -> torch.Tensor:
    """A layer of torch.nn.TransformerEncoder as eager's, which forgets padding: zeros stand there behind the encoder.

    Arguments:
        first_layer, src: of the encoder, whose gradients decide whether eager does so.
        src_key_padding_mask: 0 where there is no padding; options: of the layer, too.
    """
    result: torch.Tensor = forward(layer, x, src_key_padding_mask=src_key_padding_mask, **options)
    if torch.is_autocast_enabled():
        return result
    if torch.is_grad_enabled() and (src.requires_grad or any(p.requires_grad for p in first_layer.parameters())):
        return result
    padding = src_key_padding_mask != 0
    lengths = (~padding).sum(1, keepdim=True)
    at_the_end = padding == (torch.arange(x.shape[1], device=x.device) >= lengths)  # else eager makes no nested tensor
    return result.masked_fill((padding & at_the_end.all()).unsqueeze(-1), 0.0)


def hooks_behind(module: torch.nn.Module) -> Sequence[tuple[object, bool]]:
    """The hooks behind a module's forward, and of each whether it takes named arguments."""
    named = module._forward_hooks_with_kwargs
    return [(hook, key in named) for key, hook in module._forward_hooks.items()]


def not_arguments() -> None:
    """A hook before a module's forward answered with something else than arguments: the graph ends."""


def tensors_of(obj: object) -> list[torch.Tensor]:
    """Those that an object of tensordict holds at any depth."""
    values: list[object] = obj.values(True, True)  # type: ignore[attr-defined]
    return [value for value in values if isinstance(value, torch.Tensor)]

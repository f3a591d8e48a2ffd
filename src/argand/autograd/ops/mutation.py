"""Ops that write to their arguments, made functional by schema: `foo_` by `foo`, `foo.out` by `foo` and a copy."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import torch

from argand.autograd.recording.recorder import Recorder
from argand.autograd.recording.values import TraceTensor
from argand.errors import AutogradError
from argand.graph import compat
from argand.graph.metadata.specs import Spec, strided_meta
from argand.graph.metadata.strides import is_contiguous, is_dense, meet, memory_order
from argand.graph.plain_checks import with_plain_checks
from argand.graph.trees import tensors_of
from argand.quick_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FunctionalForm:
    """How a writing op is expressed without writes.

    Arguments:
        func: the functional overload.
        arguments: names of the writing op's arguments that it takes, in order.
        written: names of the arguments written, in the order of the functional op's last results.
        fresh: how many results come before those.
        returns: per result of the writing op, the name of the argument that it is, or None for a fresh result.
    """

    func: Any
    arguments: tuple[str, ...]
    written: tuple[str, ...]
    fresh: int
    returns: tuple[str | None, ...]


@functools.cache
def functional_form(func: Any) -> FunctionalForm | None:
    """The functional form of a writing op, found by schema; None when torch has none."""
    schema = func._schema
    namespace, name = schema.name.split("::")
    written = tuple(arg for _, arg in compat.written_arguments(func))
    is_out = {a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write and a.is_out}
    kept = [a for a in schema.arguments if a.name not in is_out]
    by_alias = {}
    for argument in schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            for mark in argument.alias_info.before_set:
                by_alias[mark] = argument.name
    returns = tuple(
        next((by_alias[m] for m in r.alias_info.before_set if m in by_alias), None)
        if r.alias_info is not None
        else None
        for r in schema.returns
    )
    wanted = [(a.name, str(a.type)) for a in kept]
    for packet_name in _candidates(name):
        packet = compat.packet_named(namespace, packet_name)
        if packet is None:
            continue
        for overload in compat.overloads(packet):
            other = overload._schema
            if other.is_mutable or [(a.name, _loose(a)) for a in other.arguments] != [
                (n, _strip(t)) for n, t in wanted
            ]:
                continue
            fresh = len(other.returns) - len(written)
            if fresh < 0 or fresh != sum(r is None for r in returns):
                continue
            return FunctionalForm(overload, tuple(n for n, _ in wanted), written, fresh, returns)
    return None


def _loose(argument: Any) -> str:
    return _strip(str(argument.type))


def _strip(text: str) -> str:
    """Optional and plain types match: the functional form may demand what the writing one leaves open."""
    return text.removeprefix("Optional[").removesuffix("]") if text.startswith("Optional[") else text


def _candidates(name: str) -> tuple[str, ...]:
    if name.endswith("_") and not name.endswith("__"):
        return (name[:-1], f"{name[:-1]}_functional", f"{name}functional")
    return (name, f"{name}_functional")


def run_mutation(tracer: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record a writing op: its functional form, then the writes. Returns what the op returns."""
    form = functional_form(func)
    if form is None:
        raise AutogradError(
            f"{func} writes to its arguments, and torch has no form of it that does not",
            remedy="the graph that holds it runs eagerly",
        )
    bound = {argument.name: value for argument, value in zip(func._schema.arguments, args)}
    bound.update(kwargs)
    written = _tensors(tracer, [bound.get(name) for name in form.written])
    refuse_written_twice(written)
    elementwise = torch.Tag.pointwise in form.func.tags and "masked_fill" not in func._schema.name
    read = [value for name, value in bound.items() if elementwise or name not in form.written]
    refuse_overlap(written, _tensors(tracer, read), elementwise=elementwise)
    _check(tracer, func, args, kwargs)
    out, source = bound.get("out"), bound.get("self")
    if "dtype" in form.arguments and bound.get("dtype") is None and out is not None and source is not None:
        if out.dtype is not source.dtype and (out.dtype.is_complex or not source.dtype.is_complex):
            bound["dtype"] = out.dtype  # it is computed in that, not converted to it
    positional, keywords = _arguments_for(form, bound)
    result = tracer.run(form.func, positional, keywords)
    results = list(result) if isinstance(result, tuple) else [result]
    for name, new in zip(form.written, results[form.fresh :]):
        _refuse_other_draws(tracer, func, bound.get(name), new)
        _write(tracer, bound.get(name), new)
    fresh = iter(results[: form.fresh])
    returned = tuple(bound[name] if name is not None else next(fresh) for name in form.returns)
    return returned[0] if len(returned) == 1 else (returned or None)


def _tensors(tracer: Recorder, tree: Any) -> list[TraceTensor]:
    return [tracer.tensor(tensor) for tensor in tensors_of(tree)]


def refuse_written_twice(written: list[TraceTensor], read: Sequence[TraceTensor] = ()) -> None:
    """A kernel that writes to one memory by two arguments leaves there what its order of writes makes of it.

    Arguments:
        read: what the kernel reads after it has begun to write.
    """
    for number, one in enumerate(written):
        for other in (*written[number + 1 :], *read):
            if one.value.root is other.value.root and _meet(one.value.spec, other.value.spec):
                raise AutogradError(
                    "an operator writes to the same memory by two of its arguments",
                    remedy="clone one argument; until then the graph runs eagerly",
                )


def refuse_overlap(written: list[TraceTensor], read: list[TraceTensor], elementwise: bool = True) -> None:
    """Kernels raise where they would write to what they read, or read what they have written by then.

    Arguments:
        elementwise: what an element becomes is computed from those at its own place.
    """
    for target in written:
        for other in read:
            if other.value.root is target.value.root and (
                _spoils(target.value.spec, other.value.spec, elementwise) or (target is other and not elementwise)
            ):
                raise AutogradError(
                    "an operator writes to memory that overlaps one of its arguments in part, or reads it elsewhere",
                    remedy="clone that argument; until then the graph runs eagerly, which raises if the kernel does",
                )


def _spoils(one: Spec, two: Spec, elementwise: bool) -> bool:
    """Whether a write to `one` may change what is read of `two` later, or the kernel refuses it."""
    if not _meet(one, two):
        return False
    (begin, *layout), (other, *its) = _lies(one), _lies(two)
    if not elementwise or layout != its:
        return True
    refused = is_dense(one.size, one.stride) and (begin != other or one.stride != two.stride)
    return refused or begin > other  # else it reads ahead


def _refuse_other_draws(tracer: Recorder, func: Any, target: Any, drawn: Any) -> None:
    """Kernels draw in the order of the memory that they fill; normal numbers otherwise where it is not row by row."""
    if not compat.is_random(func) or not isinstance(target, torch.Tensor):
        return
    by_rows = func._schema.name in ("aten::normal_", "aten::normal")

    def order(spec: Spec) -> object:
        layout = spec.size, spec.stride
        return spec.dtype, memory_order(*layout), by_rows and is_contiguous(*layout)

    if order(tracer.tensor(target).value.spec) != order(drawn.value.spec):
        raise AutogradError("random numbers are drawn into a tensor that is laid out otherwise than a new one")


def _lies(spec: Spec) -> tuple[Any, ...]:
    """Where a tensor begins, in bytes, and how it goes on."""
    itemsize = spec.dtype.itemsize
    return (spec.offset * itemsize, itemsize, *[each for each in zip(spec.size, spec.stride) if each[0] != 1])


def _meet(one: Spec, two: Spec) -> bool:
    """Whether two tensors of one storage may have memory in common."""
    (begin, itemsize, *dims), (other, its, *others) = _lies(one), _lies(two)
    if itemsize == its:
        return meet(dims, others, (other - begin) // itemsize)
    last = [sum((n - 1) * step for n, step in given) + 1 for given in (dims, others)]
    empty = 0 in one.size or 0 in two.size
    return not empty and begin < other + last[1] * its and other < begin + last[0] * itemsize


def _arguments_for(form: FunctionalForm, bound: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    for argument in form.func._schema.arguments:
        if argument.name not in bound:
            # Arguments left out at the end take the functional form's defaults, which are the same.
            continue
        if argument.kwarg_only or len(positional) < len(keywords):
            keywords[argument.name] = bound[argument.name]
        elif len(positional) == list(form.arguments).index(argument.name):
            positional.append(bound[argument.name])
        else:
            keywords[argument.name] = bound[argument.name]
    return tuple(positional), keywords


def _write(tracer: Recorder, target: Any, new: Any) -> None:
    if target is None:
        return
    if isinstance(target, (list, tuple)):
        # All values exist before the first write.
        for one, value in zip(target, new):
            if value.__class__ is not TraceTensor:  # of lists in a tuple, which the graph has no node for
                raise AutogradError("an operator that writes to several lists of tensors is not in the graph")
            tracer.write(tracer.tensor(one), value)
        return
    tracer.write(tracer.tensor(target), new)


def _check(tracer: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Run the writing op itself on fresh meta tensors: its errors are eager's, and no target may change its shape."""
    key = ("check", func, tracer._lower_args(args)[0], *kwargs, *tracer._lower_args(tuple(kwargs.values()))[0])
    results = tracer.specs.results(func, kwargs)
    if key in results:
        return
    fresh: dict[int, torch.Tensor] = {}
    targets: list[tuple[torch.Tensor, Spec]] = []

    def convert(tree: Any) -> Any:
        if isinstance(tree, torch.Tensor):
            spec = tracer.tensor(tree).value.spec
            if id(tree) not in fresh:
                fresh[id(tree)] = strided_meta(spec.size, spec.stride, spec.offset, spec.dtype)
                targets.append((fresh[id(tree)], spec))
            return fresh[id(tree)]
        if isinstance(tree, (list, tuple)):
            return [convert(item) for item in tree]
        return torch.device("meta") if isinstance(tree, torch.device) else tree

    # Without a meta kernel, the functional form's own checks must do.
    with contextlib.suppress(NotImplementedError):
        with_plain_checks(func, tuple(convert(args)), {name: convert(value) for name, value in kwargs.items()})
    for meta, spec in targets:
        if tuple(meta.shape) != spec.size:
            raise AutogradError(f"{func} resizes its output tensor")
    results[key] = True

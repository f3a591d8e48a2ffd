"""nn.Module: the call protocol without hooks, as one step with the guards that make it right."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Iterable
from types import CellType, CodeType
from typing import Any, Final, TypeAlias

import torch
from torch.nn.modules import module as registry

from argand import errors
from argand.capture.facts.frames import NULL
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import CaptureState, Interpreter
from argand.capture.facts.kinds import is_a, raw_items, raw_length
from argand.capture.facts.overlays import UNSET
from argand.capture.facts.sources import (
    ConstSource,
    DictItemSource,
    DictValueSource,
    InstanceDictSource,
    Source,
    values_of,
)
from argand.capture.objects import instances, names, polyfills
from argand.capture.torch_functions import torch_polyfills
from argand.capture.torch_functions.like_modules import calls as like_calls
from argand.capture.torch_functions.torch_calls import CODES, handler

_CALLED, _BEFORE = "_forward_hooks", "_forward_pre_hooks"
_NEITHER = ("_backward_hooks", "_backward_pre_hooks")
_OWN_HOOKS = (*_NEITHER, _CALLED, _BEFORE)
_ALWAYS = "_forward_hooks_always_called"
_NAMED = "_with_kwargs"
_TABLES = (_BEFORE, _CALLED, _BEFORE + _NAMED, _CALLED + _NAMED, _ALWAYS)
Hooks: TypeAlias = tuple[tuple[object, bool], ...]
Tables: TypeAlias = dict[object, object]
_GLOBAL_HOOKS = (
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
)


def has_no_hooks(state: CaptureState, module: torch.nn.Module, besides: tuple[str, ...] = ()) -> bool:
    """Whether calling `module` is calling its forward; installs the guards for it where the module is outer.

    Arguments:
        besides: tables in which it may have hooks.
    """
    attributes: dict[str, Any] = module.__dict__
    tables = [name for name in _OWN_HOOKS if name not in besides]
    for name in tables:
        if attributes.get(name, True) or _is_changed(state, module, name):
            return False
    if any(vars(registry)[name] or _filled_here(state, vars(registry)[name]) for name in _GLOBAL_HOOKS):
        return False
    if not _calls_as_torch_does(state, module) or torch._C._get_tracing_state() is not None:
        return False
    source = state.source_of(module)
    if source is not None:
        _guard_no_hooks(state, source, tables)
    return True


def _is_changed(state: CaptureState, module: torch.nn.Module, name: str) -> bool:
    """Whether the captured code gave a module another table of hooks, or put a hook into it."""
    return _is_replaced(state, module, name) or _filled_here(state, module.__dict__[name])


def _is_replaced(state: CaptureState, module: torch.nn.Module, name: str) -> bool:
    # A module whose `__dict__` was written to has all its attributes there.
    written = state.read_overlay(module, name)
    return written is not UNSET and written is not module.__dict__[name]


def _filled_here(state: CaptureState, hooks: object) -> bool:
    return state.is_touched(hooks) and bool(state.shadows[id(hooks)].shadow)


_STEPS: dict[str, object] = {"_compiled_call_impl": None, "_call_impl": torch.nn.Module._call_impl}
"""What calling a module goes through, and what torch has there."""


def _calls_as_torch_does(state: CaptureState, module: torch.nn.Module) -> bool:
    """Whether neither the module nor its class has steps of its own; guarded."""
    interp = state.interpreter
    for name, usual in _STEPS.items():
        of_class = interp.types.lookup(type(module), name)
        own = instances.own_value(interp, module, name)
        if (of_class if own is NULL else own) is not usual:
            return False
    return True


_REGISTRY = InstanceDictSource(ConstSource(registry, "torch.nn.modules.module"))
_GLOBAL_HOOK_SOURCES = tuple([DictItemSource(_REGISTRY, name) for name in _GLOBAL_HOOKS])


def _guard_no_hooks(state: CaptureState, source: Source, tables: Iterable[str]) -> None:
    base = InstanceDictSource(source)
    for name in tables:
        state.guard(DictItemSource(base, name), "len", 0, label="NO_HOOKS")
    for held in _GLOBAL_HOOK_SOURCES:
        state.guard(held, "len", 0, label="NO_HOOKS")


# ---------------------------------------------------------------------- hooks by their places


def _with_hooks(state: CaptureState, module: torch.nn.Module, args: Args, kwargs: Kwargs) -> object:
    """A call of a module from outside that has hooks before and behind its forward: they are called by their places.
    The ids under which torch keeps them are others in each module, and nothing depends on them."""
    source, own = state.source_of(module), module.__dict__
    if source is None or any(type(own.get(name)) not in (dict, OrderedDict) for name in _TABLES) or own[_ALWAYS]:
        return NotImplemented
    if any(_is_replaced(state, module, name) or state.is_touched(own[name]) for name in _TABLES):
        return NotImplemented
    if not has_no_hooks(state, module, (_BEFORE, _CALLED)):
        return NotImplemented
    state.guard(DictItemSource(InstanceDictSource(source), _ALWAYS), "len", 0, label="NO_HOOKS")
    before = _hooks_in_order(state, source, own, _BEFORE)
    given = (module, args, dict(kwargs), before, torch_polyfills.hooks_behind, torch_polyfills.not_arguments)
    return state.interpreter.polyfill(polyfills.hooked_call, *given)


def _hooks_in_order(state: CaptureState, source: Source, own: dict[str, Tables], name: str) -> Hooks:
    """The hooks of a table, and of each whether it takes named arguments."""
    base = InstanceDictSource(source)
    table, named = DictItemSource(base, name), DictItemSource(base, name + _NAMED)
    flags = _flags_of(name, own)
    state.guard(table, "len", len(flags))
    if raw_length(own[name + _NAMED]):
        state.guard(base, "call", _FLAGS[name], flags)
    else:
        state.guard(named, "len", 0)
    hooks = [state.load_source(DictValueSource(table, i), hook) for i, hook in enumerate(values_of(own[name]))]
    return tuple(zip(hooks, flags))


def _flags_of(name: str, own: dict[str, Tables]) -> tuple[bool, ...]:
    named = [key for key, _ in raw_items(own[name + _NAMED])]
    return tuple([key in named for key, _ in raw_items(own[name])])


_FLAGS = {name: functools.partial(_flags_of, name) for name in (_BEFORE, _CALLED)}


@handler(torch_polyfills.hooks_behind)
def _hooks_behind(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """Those that are there when forward is over, which may have changed them."""
    (module,) = args
    own, source = module.__dict__, state.source_of(module)
    if source is None or any(_is_replaced(state, module, name) for name in _TABLES):
        raise _not_known("its hooks are others when its forward is over")
    if state.is_touched(own[_ALWAYS]):
        raise _not_known("its forward puts on a hook that is called also when it raises")
    if state.is_touched(own[_CALLED]) or state.is_touched(own[_CALLED + _NAMED]):
        return NotImplemented
    return _hooks_in_order(state, source, own, _CALLED)


@handler(torch_polyfills.not_arguments)
def _not_arguments(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    raise _not_known("a hook before its forward answers with something else than arguments")


def _not_known(why: str) -> errors.GraphBreak:
    return errors.graph_break(
        kind="part of torch that is not captured", context="torch.nn.Module", explanation=f"A module is called: {why}."
    )


@handler(torch.nn.Module._wrapped_call_impl, torch.nn.Module._call_impl)
def _call_impl(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """Without hooks: forward. With hooks of other kinds than those around forward: torch's own code, interpreted."""
    module = args[0]
    if not is_a(module, torch.nn.Module):
        return NotImplemented

    def run() -> object:
        if not has_no_hooks(state, module):
            return _with_hooks(state, module, args[1:], kwargs)
        forward = state.interpreter.getattr(module, "forward")
        return state.interpreter.call(forward, args[1:], kwargs)

    return like_calls.call(state, module, args[1:], kwargs, run)


def is_call(code: CodeType) -> bool:
    """Whether it is torch's own of calling a module with hooks: the same while compiling, but for those below."""
    return code is torch.nn.Module._call_impl.__code__


def same_while_compiling(code: CodeType) -> bool:
    """Whether code of torch's that asks does the same but for names of functions, which are those of the program's."""
    return is_call(code) or any(code is own for own in _WRAPPING)


_WRAPPING: Final = tuple([fn.__code__ for fn in (torch.func.vmap, torch.func.grad, torch.func.grad_and_value)])


def runs_hooks_after_an_error(interp: Interpreter) -> bool:
    """Whether the code at hand is torch's, calling a module that has hooks to be called also when its forward raises.

    While compiling, torch leaves those out.
    """
    frame = interp.frames[-1]
    if not is_call(frame.code):
        return False
    module = frame.locals_by_name()["self"]
    if type(module) is CellType:
        module = names.read_cell(interp, module)
    hooks = [interp.getattr(module, "_forward_hooks"), names.load_global(interp, frame, "_global_forward_hooks")]
    if not all(type(interp.shadow(held)) in (dict, OrderedDict) for held in hooks):
        return True  # walking over them may raise, and says so after an error only
    always = interp.getattr(module, "_forward_hooks_always_called")
    return interp.truth(always) or interp.truth(names.load_global(interp, frame, "_global_forward_hooks_always_called"))


_CALLS = (torch.nn.Module._call_impl.__code__, torch.nn.Module._wrapped_call_impl.__code__)
_ENCODER: CodeType = torch.nn.TransformerEncoder.forward.__code__
_PADDING, _REASON = "src_key_padding_mask", "why_not_sparsity_fast_path"


def _own_way(why: str) -> errors.GraphBreak:
    return errors.graph_break(
        kind="part of torch that is not captured", context="torch.nn.TransformerEncoder",
        explanation=f"It may make a nested tensor of a padded batch, and {why}.",
    )  # fmt: skip


def check_encoder(interp: Interpreter) -> None:
    """An encoder asks whether it is compiled, on the way to a nested tensor: its layers must be torch's own."""
    frame = interp.frames[-1]
    if frame.code is not _ENCODER:
        return
    layers: Any = interp.call(list, (interp.getattr(frame.locals_by_name()["self"], "layers"),), {})
    for layer in layers:
        function = getattr(interp.getattr(layer, "forward"), "__func__", None)
        if function is not torch.nn.TransformerEncoderLayer.forward:
            raise _own_way(f"{type(layer).__name__} has a forward of its own")


@handler(torch.nn.TransformerEncoderLayer.forward)
def _encoder_layer(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """Where torch compiles, an encoder makes no nested tensor of a padded batch. Eager's does, where no gradient is
    recorded, and what was padding comes out as zeros."""
    frame = next((frame for frame in reversed(state.interpreter.frames) if frame.code not in _CALLS), None)
    if frame is None or frame.code is not _ENCODER or kwargs.get(_PADDING) is None:
        return NotImplemented
    known = frame.locals_by_name()
    names_of = {_REASON, "src", "first_layer"}
    if not names_of.issubset(known) or len(args) != 2 or set(kwargs) != {_PADDING, "src_mask", "is_causal"}:
        raise _own_way("this torch's does in a way of its own")
    if "torch.compile" not in str(known[_REASON]) or kwargs["src_mask"] is not None:
        return NotImplemented
    given = (fn, known["first_layer"], known["src"], *args)
    return state.interpreter.call(torch_polyfills.padded_encoder_layer, given, kwargs)


@handler(torch.fx.graph_module._WrappedCall)
def _graph_module_call(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """What `__call__` of a GraphModule's class calls; it adds to errors where in the generated code they were."""
    interp = state.interpreter
    own = interp.getattr(fn, "cls_call")
    if own is not None:
        return interp.call(own, args, kwargs)
    above = interp.call(super, (interp.getattr(fn, "cls"), args[0]))
    return interp.call(interp.getattr(above, "__call__"), args[1:], kwargs)


CODES["graph_module.py:GraphModule.recompile.<locals>.call_wrapped"] = lambda state, fn, args, kwargs: NotImplemented

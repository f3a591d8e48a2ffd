"""What a hook, or the backward of an autograd.Function, looks at when it runs, which is later than when it is captured:
it must still be the same by then.

What the compiled function made (containers, instances, cells) is compared part by part, what existed before it by what
capture holds back for it. Where it may run after the graph, it must not look at what others can change until then: an
attribute, a global or a free variable that holds data. Numbers and texts of modules and classes whose names are in
capitals are taken for constants, and so are those that the class body of an installed package's autograd.Function
gives, where nothing in its file assigns to an attribute of that name.
"""

from __future__ import annotations

import ast
import collections
import enum
import functools
import linecache
import sys
import types
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import fx

from argand import errors
from argand.capture.facts.classify import distributed_values
from argand.capture.facts.code.skip import library_of
from argand.capture.facts.interfaces import CaptureState
from argand.capture.facts.kinds import held_items, is_a, namespace
from argand.capture.facts.overlays import Shadow
from argand.capture.facts.sources import (
    BuiltinSource,
    ConstSource,
    FuncClosureSource,
    FuncDefaultsTupleSource,
    FuncKwdefaultsDictSource,
    GlobalSource,
    ImportedSource,
    InstanceDictSource,
    LocalSource,
    MethodSelfSource,
    SequenceItemSource,
    Source,
)
from argand.capture.facts.typefacts import ATOMS
from argand.capture.torch_functions.higher_order.repeated_calls import alike
from argand.capture.world import pending_effects
from argand.capture.world.pending_effects import Watched
from argand.graph.dtensors import mesh_class
from argand.graph.trees import tensors_of
from argand.quick_dataclasses import dataclass

_CONTAINERS = (list, dict, set, collections.deque, collections.OrderedDict,
            collections.defaultdict)  # fmt: skip
_OF_MODULES = frozenset(("_parameters", "_buffers", "_modules"))
_MOST = 2000  # objects that are followed
_STEADY = (types.FunctionType | types.BuiltinFunctionType | types.ModuleType | type | torch.dtype | torch.layout
           | torch.memory_format | enum.Enum)  # fmt: skip
_LIBRARIES = frozenset((*sys.stdlib_module_names, "torch", "numpy", "argand"))  # nobody assigns to their names

Parts = list[tuple[object, tuple[object, ...]]]


@dataclass(slots=True, eq=False)
class Later:
    """A hook, or a backward, that has been captured.

    Arguments:
        kind: which of the two.
        hook: the callable, or the backward and its `ctx`.
        parts: the objects that can be reached from it, and what each one held when it was captured.
        outer: ids of objects from before the frame that it looked at; before: what was held back of them.
        sequence: number of the root instruction that put it on a tensor.
        reads: what it looked at that others may change after the graph; "" for nothing.
        node: what it hangs on; None in a graph within the graph.
    """

    kind: str
    hook: object
    parts: Parts
    outer: set[int]
    before: dict[int, list[object]]
    sequence: int
    reads: str
    node: fx.Node | None


_HOOK = "hook on a tensor"
_BACKWARD = "autograd.Function"


def refused(explanation: str) -> errors.GraphBreak:
    return errors.graph_break(kind=_HOOK, context="Tensor.register_hook", explanation=explanation)


def note(state: CaptureState, hook: object, before: Parts, watched: Watched, node: fx.Node) -> None:
    """A hook was captured.

    Raises:
        GraphBreak: it changed something, or looked at what may be another thing when it runs.
    """
    before = reached(state, hook, {id(value): parts for value, parts in before})
    if not _same(before, reached(state, hook)):
        raise errors.graph_break(
            kind="side effect in a subgraph",
            context="Tensor.register_hook",
            explanation="The function given to Tensor.register_hook changes an object outside of it.",
        )
    read = [state.object_by_id(number) for number in watched.ids if not _of_module(state, number)]
    if any(type(value) in _CONTAINERS for value in read) or any(
        is_a(value, list | dict | set | collections.deque) for value, _ in before
    ):
        raise refused("The hook reads a container that may hold something else by the time it runs.")
    _append(state, _HOOK, hook, before, watched, node)


def note_backward(state: CaptureState, backward: object, context: object, watched: Watched, node: fx.Node) -> None:
    """The backward of an autograd.Function was captured."""
    both = (backward, context)
    _append(state, _BACKWARD, both, reached(state, both), watched, node)


def _append(state: CaptureState, kind: str, hook: object, parts: Parts, watched: Watched, node: fx.Node) -> None:
    held = {number: kept for number, kept in _held_back(state).items() if number in watched.ids}
    reads = next((source.friendly() for source, _ in passing_reads(state, watched)), "")
    reads = reads or ("an object that the compiled function wrote to" if held else "")
    place = None if state.graph.scopes else node
    number = state.interpreter.number
    state.graph.hooks.append(Later(kind, hook, parts, watched.ids, held, number, reads, place))


def passing_reads(state: CaptureState, watched: Watched) -> Iterator[tuple[Source, object]]:
    """What was looked at that others may change later."""
    loaded = {state.outer.get(id(value)): value for _, value in watched.loads} | dict(watched.loads)
    passing = [(source, value) for source, value in watched.loads if not _lasts(source, value, loaded)]
    if passing:  # of something that was looked at before, perhaps
        loaded = {**{source: state.object_by_id(number) for number, source in state.outer.items()}, **loaded}
    return ((source, value) for source, value in passing if not _lasts(source, value, loaded))


def _lasts(source: Source, value: object, loaded: Mapping[Source | None, object]) -> bool:
    """Whether what was loaded is what would be loaded at any later time.

    Arguments:
        loaded: what else was, by where it was, and by where capture found it first.
    """
    own = LocalSource | ConstSource | ImportedSource | BuiltinSource | InstanceDictSource | FuncClosureSource
    if is_a(value, _STEADY | types.CellType) or is_a(source, own) or _is_layout(value):  # (a cell's contents tell)
        return True
    base = source.base
    while is_a(base, InstanceDictSource):
        base = base.base
    owner = base.key if is_a(base, ConstSource) else loaded.get(base) if base is not None else None
    if is_a(source, SequenceItemSource | FuncDefaultsTupleSource | FuncKwdefaultsDictSource | MethodSelfSource):
        return base is not None and not is_a(owner, list | collections.deque) and _lasts(base, owner, loaded)
    if is_a(source, GlobalSource):
        return _is_constant(source.key, value)
    space = owner if type(owner) is dict else vars(owner) if is_a(owner, type | types.ModuleType) else {}
    if "__name__" in space or "__module__" in space:
        if _is_constant(source.key, value):
            return True
    name = space.get("__module__" if is_a(owner, type) else "__name__")
    if not isinstance(name, str):
        return False
    if is_a(owner, type) and issubclass(owner, torch.autograd.Function) and type(value) in ATOMS:
        file = getattr(sys.modules.get(name), "__file__", None)
        if isinstance(file, str) and library_of(file) and not _is_assigned(file, str(source.key)):
            return True
    return name.partition(".")[0] in _LIBRARIES


def _is_layout(value: object) -> bool:
    """Whether a value is a mesh or a placement, which name one layout for as long as the program runs."""
    return type(value) in (mesh_class(), *distributed_values())


def _is_constant(name: object, value: object) -> bool:
    """Whether a module or a class says of a name, by its letters, that nobody assigns to it again."""
    return is_a(name, str) and name.isupper() and type(value) in ATOMS


@functools.lru_cache(maxsize=1024)
def _is_assigned(file: str, name: str) -> bool:
    """Whether a file may give an attribute of this name to something; a text of the name may be for `setattr`."""
    try:
        nodes = list(ast.walk(ast.parse("".join(linecache.getlines(file)))))
    except SyntaxError:
        return True
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load)}
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return not nodes[1:] or name in attributes or name in texts


def check_outputs(state: CaptureState, outputs: Sequence[object]) -> None:
    """Where it is known what the graph returns.

    Raises:
        GraphBreak: a hook may run later, for one of these, and looks at what may be something else then; or is on one
            of these, where others may be put behind it.
    """
    infos = [state.graph.tensors.get(id(value)) for value in outputs]
    handed_out = {info.node for info in infos if info is not None}
    for later in state.graph.hooks:
        assert isinstance(later, Later)
        if later.kind is _HOOK and later.node in handed_out:
            raise _stopped(later, "Its tensor is handed out, to where further hooks may be put on it, which run after.")
        if later.reads and (later.node is None or _outlives(state, later.node, outputs)):
            why = f"It reads {later.reads}, which may be another by the time that it runs, after the compiled code."
            raise _stopped(later, why)


def _stopped(later: Later, why: str) -> errors.GraphBreak:
    backward = errors.graph_break(kind=_BACKWARD, context="backward", explanation=why)
    stop = refused(why) if later.kind is _HOOK else backward
    stop.sequence = later.sequence
    return stop


def _outlives(state: CaptureState, node: fx.Node, outputs: Sequence[object]) -> bool:
    """Whether the history of a result, or of what the graph writes to, leads to a node."""
    seen, todo = {node}, [node]
    while todo:
        for user in todo.pop().users:
            tensors = tensors_of(user.meta.get("example_value"))
            if user not in seen and (not tensors or any(tensor.requires_grad for tensor in tensors)):
                if _keeps_history(state, user):
                    return True
                seen.add(user)
                todo.append(user)
    for value in outputs:
        info = state.graph.tensors.get(id(value))
        if info is not None and info.node in seen and info.tensor.requires_grad:
            return True
    return False


def _keeps_history(state: CaptureState, node: fx.Node) -> bool:
    """Whether what a node writes to has a history from then on, which the statistics of a batch norm have not."""
    written = state.graph.writing.get(node)
    if written is None:
        return False
    held = [
        tensor
        for target in written
        if isinstance(target, fx.Node)
        for tensor in tensors_of(target.meta.get("example_value"))
    ]
    return not held or any(tensor.requires_grad for tensor in held)


def check(state: CaptureState, goes_on: bool = False) -> None:
    """Where gradients are computed, and where the graph ends.

    Arguments:
        goes_on: the compiled function does, behind a graph break, and may change what is its own.

    Raises:
        GraphBreak: something that a hook looked at is not what it was.
    """
    for later in state.graph.hooks:
        assert isinstance(later, Later)
        now = {number: kept for number, kept in _held_back(state).items() if number in later.outer}
        same = now.keys() == later.before.keys() and all(alike(now[each], later.before[each]) for each in now)
        own = later.kind is _HOOK and goes_on and any(not _lasting(part) for part, _ in later.parts)
        if not same or own or not _same(later.parts, reached(state, later.hook)):
            why = "What it reads may change between the line that hands it over and its run."
            raise _stopped(later, why)


def of_tensors(state: CaptureState) -> bool:
    """Whether the program has put a hook on a tensor."""
    return any(isinstance(later, Later) and later.kind is _HOOK for later in state.graph.hooks)


def reached(state: CaptureState, hook: object, earlier: Mapping[int, tuple[object, ...]] | None = None) -> Parts:
    """What hangs together with a hook, of what the compiled function made, and what each part holds.

    Arguments:
        earlier: what each part held, of which the program has since found some outside, where guards are on it.

    Raises:
        GraphBreak: it is too much.
    """
    walked: Parts = []
    seen: set[int] = set()
    todo = [hook]
    while todo:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        parts = _parts(state, value) if earlier is None or state.is_outer(value) else earlier.get(id(value), ())
        if parts:
            walked.append((value, parts))
            todo.extend(parts)
        if len(walked) > _MOST:
            raise refused("The hook can reach more objects than are followed.")
    return walked


def _parts(state: CaptureState, value: object) -> tuple[object, ...]:
    if is_a(value, types.FunctionType):
        return (*(value.__closure__ or ()), *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
    if is_a(value, types.MethodType):
        return value.__self__, value.__func__
    if is_a(value, types.CellType):
        if id(value) in state.interpreter.cell_values:
            return (state.interpreter.cell_values[id(value)],)
        try:
            return (value.cell_contents,)
        except ValueError:
            return ()
    if type(value) is functools.partial:
        return value.func, *value.args, *value.keywords.values()
    if state.is_outer(value) or is_a(value, type | types.ModuleType) or state.interpreter.is_tensor(value):
        return ()
    if is_a(value, list | tuple | dict | set | frozenset | collections.deque):
        return tuple(held_items(value))
    attributes = namespace(value)
    return () if attributes is None else tuple(held_items(attributes))


def _lasting(part: object) -> bool:
    """Whether what is reached can only ever hold what it does."""
    return is_a(part, tuple | frozenset | types.FunctionType | types.MethodType | functools.partial)


def _same(before: Parts, after: Parts) -> bool:
    return len(before) == len(after) and all(
        a is b and alike(ours, theirs) for (a, ours), (b, theirs) in zip(before, after)
    )


def _of_module(state: CaptureState, number: int) -> bool:
    source = state.outer.get(number)
    return source is not None and getattr(source, "key", None) in _OF_MODULES


def _held_back(state: CaptureState) -> dict[int, list[object]]:
    """By id of the object: what is held back of it."""
    held: dict[int, list[object]] = {}
    for entry in pending_effects.pending(state):
        if isinstance(entry, Shadow):
            held[id(entry.original)] = list(held_items(entry.shadow))
        else:
            held[id(entry.obj)] = list(held_items(entry.values))
    return held

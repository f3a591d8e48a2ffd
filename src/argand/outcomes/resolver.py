"""What rows of a table stand for in this process, for one frame."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import torch
from torch import fx

from argand._core import _C
from argand.bytecode import generators_at_yields
from argand.bytecode.decode import decode
from argand.graph.nodes import codec
from argand.graph.nodes.module_text import SETTLED
from argand.graph.nodes.undone_writes import undoing
from argand.outcomes import fingerprints, operators
from argand.outcomes.reads import Unknown
from argand.outcomes.references import DESCRIPTORS, Checks, Row, reached, step
from argand.outcomes.resume_codes import PARTS, Place, label_of, labelled, new_label
from argand.runtime.environment import gpu
from argand.runtime.recipes import compile_wrapper, recipe_of, with_recipe

OWN: Final = "argand."
"""Only functions of argand's make objects for rows of the kind "made"."""


class Mismatch(Exception):
    """Something is not what it was where the outcome was made."""


class Frame(Protocol):
    """What of a `_C.FrameInfo` is asked."""

    @property
    def code(self) -> types.CodeType: ...
    @property
    def args(self) -> tuple[Any, ...]: ...
    @property
    def globals(self) -> dict[str, Any]: ...
    @property
    def builtins(self) -> dict[str, Any]: ...
    @property
    def closure(self) -> tuple[types.CellType, ...] | None: ...


Child = tuple[int, str, Sequence[Any], Sequence[int]]
"""A node of the guard tree: its parent, its accessor, the accessor's arguments, and which of these are rows."""


class Resolver:
    """The objects of a table.

    Arguments:
        rows: of `references.Describer`.
        children: the nodes of the guard tree, by number.
        frame: where places are looked up.
        region: that the frame belongs to.
    """

    def __init__(self, rows: Sequence[Row], children: Mapping[int, Child], frame: Frame, region: object = None) -> None:
        self.rows = rows
        self.children = children
        self.frame = frame
        self.region = region
        self._objects: dict[int, Any] = {}
        self._values: dict[int, Any] = {0: None}
        self._open: set[int] = set()

    def object(self, number: int) -> Any:
        """What a row stands for.

        Raises:
            Mismatch: there is no such thing here.
        """
        if number in self._objects:
            return self._objects[number]
        if number in self._open:
            raise Mismatch("a place that leads to itself")
        self._open.add(number)
        kind, *parts = self.rows[number]
        try:
            held = _KINDS[kind](self, *parts)
        except Mismatch:
            raise
        except Exception as error:
            raise Mismatch(f"{kind} {parts}: {error!r}") from error
        self._open.discard(number)
        self._objects[number] = held
        return held

    def objects(self, numbers: Sequence[int]) -> list[Any]:
        """What several rows stand for."""
        return [self.object(number) for number in numbers]

    def arguments(self, args: Sequence[Any], rows: Sequence[int]) -> Sequence[Any]:
        """Arguments of a call, of which those at the places `rows` are numbers of rows."""
        if not rows:
            return args
        resolved = list(args)
        for place in rows:
            resolved[place] = self.object(resolved[place])
        return resolved

    def check(self, checks: Checks) -> None:
        """Compare functions and classes with what they were.

        Raises:
            Mismatch: one is another.
        """
        for number, known, namespace in checks.functions:
            function = self.object(number)
            if type(function) is not types.FunctionType or fingerprints.of_function(function) != known:
                raise Mismatch(f"function {getattr(function, '__qualname__', function)} was edited")
            if function.__globals__ is not self.object(namespace):
                raise Mismatch(f"function {function.__qualname__} has other globals")
        for number, known in checks.codes:
            code = self.object(number)
            if type(code) is not types.CodeType or fingerprints.of_code(code) != known:
                raise Mismatch("the code of a function was edited")
        classes: dict[Any, fingerprints.Classes] = {}
        for number, names, known in checks.classes:
            cls = self.object(number)
            asked = classes.setdefault(names, fingerprints.Classes(None if names is None else set(names)))
            if not issubclass(type(cls), type) or asked.digest(cls) != known:
                raise Mismatch(f"{self.rows[number]} is another than it was")
        for number, base in checks.registered:
            if not issubclass(self.object(number), self.object(base)):
                raise Mismatch(f"{self.rows[number]} is not registered with {self.rows[base]}")
        for name, known in checks.operators:
            try:
                same = operators.identity(operators.packet_of(name)) == known
            except (AttributeError, Unknown):  # it is not there yet
                same = False
            if not same:
                raise Mismatch(f"operator {name} is another than it was")

    # ---------------------------------------------------------------- places

    def value(self, node: int) -> Any:
        """What the guards find at a node."""
        if node not in self._values:
            parent, accessor, args, rows = self.children[node]
            base = self.value(parent)
            arguments = self.arguments(args, rows)
            try:
                self._values[node] = _ACCESSORS[accessor](self.frame, base, *arguments)
            except Exception as error:
                raise Mismatch(f"nothing is found at {accessor} {args}") from error
        return self._values[node]


def _path(_: Resolver, home: str, name: str, steps: Sequence[tuple[Any, ...]], kind: str) -> Any:
    if home.startswith(OWN):
        importlib.import_module(home)
    held = reached(home, name)
    for way in steps:
        held = step(held, way)
    if held is None:
        raise Mismatch(f"there is no {home}.{name}")
    cls = type(held)
    if fingerprints.name_of(cls) != kind or (
        cls is types.BuiltinFunctionType and held.__name__ != name.rpartition(".")[2]
    ):
        raise Mismatch(f"{home}.{name} is another than it was")
    return held


def _module(_: Resolver, name: str) -> Any:
    if name.startswith(OWN):
        importlib.import_module(name)
    return sys.modules[name]


def with_codes_of(users: types.CodeType, code: types.CodeType) -> types.CodeType:
    """Code that was made of a function's, which has the same code objects within: those of the function itself."""
    own = {const: const for const in users.co_consts if type(const) is types.CodeType}
    if not own:
        return code
    consts = [own.get(const, const) if type(const) is types.CodeType else const for const in code.co_consts]
    return code.replace(co_filename=users.co_filename, co_consts=tuple(consts))


def _part(resolver: Resolver, code: types.CodeType, parts: tuple[Any, ...]) -> types.CodeType:
    """The code of a resume function; there is one in a process."""
    place, users = Place(*parts), PARTS.users(resolver.frame.code)
    code = with_codes_of(users, code.replace(co_filename=users.co_filename))
    code = labelled(code, new_label(place.offset))
    known = PARTS.enter(users, place, code)
    if PARTS.of(known) is None:
        raise Mismatch("the resume function is another than it was")
    return known


def _part_function(resolver: Resolver, number: int) -> types.FunctionType:
    code = resolver.object(number)
    return types.FunctionType(code, resolver.frame.globals, label_of(code))


def _code_within(resolver: Resolver, function: int | None, way: Sequence[int]) -> types.CodeType:
    """Code of a function, of the frame's where it is None, or within it."""
    code = PARTS.users(resolver.frame.code) if function is None else resolver.object(function).__code__
    return functools.reduce(lambda outer, place: outer.co_consts[place], way, code)


def _suspended(resolver: Resolver, code: int, at: int, stack: int, names: tuple[str, ...]) -> types.CodeType:
    users = resolver.object(code)
    suspended = generators_at_yields.suspended_code(users, decode(users), at, stack, names)
    if suspended is None:
        raise Mismatch("the generator is another than it was")
    return suspended


def _backward_class(resolver: Resolver, forward: int) -> type:
    cls = resolver.object(forward)
    backward: type = vars(cls)["_backward_cls"]
    if vars(backward)["_forward_cls"] is not cls:
        raise Mismatch(f"{cls.__qualname__}._backward_cls is another than torch made")
    return backward


def _held(resolver: Resolver, owner: int, name: str, steps: Sequence[tuple[Any, ...]]) -> Any:
    held = vars(resolver.object(owner))[name]
    for way in steps:
        held = step(held, way)
    if type(held) is not types.FunctionType:
        raise Mismatch(f"{name} is another than it was")
    return held


def _raw(resolver: Resolver, owner: int, name: str) -> Any:
    cls = resolver.object(owner)
    descriptor = vars(cls)[name]
    if type(descriptor) not in DESCRIPTORS or descriptor.__objclass__ is not cls or descriptor.__name__ != name:
        raise Mismatch(f"{cls.__qualname__}.{name} is another than it was")
    return descriptor


def _operator(_: Resolver, namespace: str, name: str, overload: str) -> Any:
    if namespace == "argand":
        pkgutil.resolve_name("argand.runtime.ops:argand_ops")()  # defines them
    return getattr(getattr(getattr(torch.ops, namespace), name), overload)


def _device(_: Resolver, kind: str, index: int | None, about: str) -> torch.device:
    device = torch.device(kind) if index is None else torch.device(kind, index)
    if about and not (torch.cuda.is_initialized() and gpu(device) == about):
        raise Mismatch(f"{device} is another GPU than it was")
    return device


def _place(resolver: Resolver, node: int, what: str) -> Any:
    value = resolver.value(node)
    return type(value) if what == "class" else value


def _number_of_numpy(_: Resolver, name: str, data: bytes) -> Any:
    numpy = sys.modules["numpy"]
    return numpy.frombuffer(data, vars(numpy)[name])[0]


def _partial(resolver: Resolver, fn: int, args: Sequence[int], keywords: Sequence[tuple[str, int]]) -> Any:
    named = {name: resolver.object(number) for name, number in keywords}
    return functools.partial(resolver.object(fn), *resolver.objects(args), **named)


def _from_maker(resolver: Resolver, maker: str, args: Sequence[int]) -> Any:
    home, _, name = maker.partition(":")
    if not home.startswith(OWN):
        raise Mismatch(f"{maker} is not argand's")
    return getattr(importlib.import_module(home), name)(*resolver.objects(args))


def _recipe(resolver: Resolver, kind: str, parts: Sequence[tuple[str, Any]]) -> Any:
    given: list[Any] = []
    for what, held in parts:
        if what == "names":
            given.append({name: resolver.object(number) for name, number in held})
        elif what == "plain":
            given.append(held)
        elif what == "graph":
            encoded, used = held
            given.append(Late(encoded, {number: resolver.object(number) for number in used}))
        else:
            given.append(resolver.object(held))
    maker = MAKERS[kind]
    return (pkgutil.resolve_name(maker) if isinstance(maker, str) else maker)(*given)


class Late:
    """A graph that is decoded when it is first run."""

    def __init__(self, encoded: codec.Encoded, objects: Mapping[int, Any]) -> None:
        self.encoded, self.objects = encoded, objects
        self.graph: fx.GraphModule | None = None

    def module(self) -> fx.GraphModule:
        if self.graph is None:
            self.graph = codec.decode(self.encoded, self.objects.__getitem__)
        return self.graph


def run_graph(late: Late, undone: Sequence[int] = ()) -> Callable[..., Any]:
    """A captured graph as a function of its arguments; `undone`: those that it puts back when it raises."""

    def run(*args: Any) -> Any:
        return late.module().forward(*args)

    vars(run)[SETTLED] = lambda: late.module().forward
    return with_recipe(undoing(run, undone) if undone else run, "graph again", lambda: (late,))


def module_of(graph: Callable[..., Any]) -> fx.GraphModule:
    """The module of `run_graph`'s function."""
    recipe = recipe_of(graph)
    assert recipe is not None and recipe.kind == "graph again"
    module: fx.GraphModule = recipe.parts()[0].module()
    return module


MAKERS: Final[Mapping[str, str | Callable[..., Any]]] = {
    "wrapper": compile_wrapper,
    "graph": run_graph,
    "number": "argand.graph.sizes.symbols:number_function",
    "program": "argand.runtime.stored_modules:stored_call",
    "frozen": "argand.runtime.frozen_parameters:FrozenCall",
    "text": "argand.runtime.stored_modules:call_of_text",
    "recorded": "argand.runtime.gpu.cuda_graphs.stored_recordings:recorded_again",
    "taped": "argand.backends.stored_functions:stored_function",
    "small": "argand.backends.stored_functions:stored_small",
    "left to eager": "argand.backends.small_graphs:left_to_eager",
    "with tape": "argand.runtime.tape.function:with_tape",
    "cut or whole": "argand.backends.in_parts.contest:stored_alternatives",
    "part under ddp": "argand.backends.in_parts.parts:stored_part",
    "exact sizes": "argand.backends.stored_functions:exact_sizes",
    "only without grad": "argand.runtime.tape.function:only_without_grad",
    "under grad": "argand.runtime.tape.function:under_grad",
    "heeding hooks": "argand.runtime.tape.function:heeding_hooks",
    "bared": "argand.runtime.tape.bared_inputs:bared",
    "untaped": "argand.runtime.tape.function:untaped",
    "spent": "argand.runtime.tape.function:with_spent",
    "results only": "argand.runtime.tape.function:results_only",
    "put back grad mode": "argand.capture.torch_functions.grad_mode:put_back_grad",
    "in steps": "argand.capture.facts.code.graph_steps:stored_steps",
    "put back modes": "argand.capture.torch_functions.modes:put_back_all",
}
"""What makes callables of a recipe: functions, or where they are."""

_KINDS: Final[Mapping[str, Callable[..., Any]]] = {
    "value": lambda _, value: value,
    "code": lambda _, code: code,
    "frame code": lambda to: to.frame.code,
    "frame region": lambda to: to.region,
    "part": _part,
    "part function": _part_function,
    "code within": _code_within,
    "suspended": _suspended,
    "tuple": lambda to, items: tuple(to.objects(items)),
    "list": lambda to, items: to.objects(items),
    "set": lambda to, items: set(to.objects(items)),
    "frozenset": lambda to, items: frozenset(to.objects(items)),
    "size": lambda to, items: torch.Size(to.objects(items)),
    "slice": lambda to, parts: slice(*to.objects(parts)),
    "range": lambda to, parts: range(*to.objects(parts)),
    "torch": lambda _, name: getattr(torch, name),
    "number of numpy": _number_of_numpy,
    "device": _device,
    "modules": lambda _: sys.modules,
    "globals": lambda to, name: vars(_module(to, name)),
    "globals of": lambda to, function: to.object(function).__globals__,
    "frame globals": lambda to: to.frame.globals,
    "module": _module,
    "member": lambda to, cls, name: to.object(cls)._member_map_[name],
    "operator": _operator,
    "path": _path,
    "raw": _raw,
    "held": _held,
    "backward class": _backward_class,
    "class of": lambda to, cls: type(to.object(cls)),
    "place": _place,
    "partial": _partial,
    "made": _from_maker,
    "recipe": _recipe,
    "region": lambda to, fn: _C.Region(None, None, to.object(fn)),
}


def _own_dict(_: Frame, value: Any) -> Any:
    return vars(value) if isinstance(value, type | types.ModuleType) else object.__getattribute__(value, "__dict__")


def _type_attribute(_: Frame, cls: Any, name: str) -> Any:
    namespaces = map(fingerprints.namespace_of, fingerprints.mro_of(cls))
    return next(namespace[name] for namespace in namespaces if name in namespace)


def _item(_: Frame, value: Any, index: int) -> Any:
    return (tuple if isinstance(value, tuple) else list).__getitem__(value, index)


def _called(_: Frame, value: Any, function: Any) -> Any:
    if not function.__module__.startswith(OWN):
        raise Mismatch("a function of the program's is not called to find a place")
    return function(value)


_ACCESSORS: Final[Mapping[str, Callable[..., Any]]] = {
    "local": lambda frame, _, index: frame.args[index],
    "global": lambda frame, _, name: frame.globals[name],
    "builtin": lambda frame, _, name: frame.builtins[name],
    "closure": lambda frame, _, index: (frame.closure or ())[index].cell_contents,
    "const": lambda frame, _, obj: obj,
    "attr": lambda frame, value, name: getattr(value, name),
    "type": lambda frame, value: type(value),
    "call": _called,
    "type_attr": _type_attribute,
    "instance_dict": _own_dict,
    "module_dict": _own_dict,
    "dict_item": lambda frame, value, key: dict.__getitem__(value, key),
    "dict_value": lambda frame, value, index: [*value.values()][index],
    "sequence_item": _item,
    "func_closure": lambda frame, value, index: value.__closure__[index].cell_contents,
    "cell_contents": lambda frame, value: value.cell_contents,
    "func_code": lambda frame, value: value.__code__,
    "func_defaults": lambda frame, value: value.__defaults__,
    "func_kwdefaults": lambda frame, value: value.__kwdefaults__,
    "method_self": lambda frame, value: value.__self__,
    "method_func": lambda frame, value: value.__func__,
}
"""The accessors of guard trees that places are found by."""

"""Where a value that capture met came from: small immutable paths that compose, print and reload themselves.

Every source is `(base, key)` and a class, whose `step` says what one step of this kind means: how it is spelled, how
the guards' C core reads it, how transformed code does. `name()` is the developer's spelling
(`L['self']._modules['fc'].weight`), `friendly()` the user's (`self.fc.weight`).
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import field, replace
from typing import Any, ClassVar, Protocol

from argand import errors
from argand._core import _C
from argand.capture.facts.handlers import Function
from argand.capture.facts.kinds import namespace, raw_item, raw_items
from argand.quick_dataclasses import dataclass


class LoadTarget(Protocol):
    """What `Source.load` needs of an emitter: each method appends the instructions of one step."""

    def load_source(self, source: Source) -> None: ...
    def load_local(self, name: str) -> None: ...
    def load_global(self, name: str, /) -> object: ...
    def load_closure(self, name: str, /) -> object: ...
    def load_closure_cell(self, name: str, /) -> object: ...
    def load_const(self, value: object, /) -> object: ...
    def attr(self, name: str, /) -> object: ...
    def subscript(self, key: object) -> None: ...
    def call_helper(self, helper: object, extra: tuple[object, ...] = ()) -> None: ...


Load = Callable[[LoadTarget, Any], object]
"""base -> value: appends the instructions of a step, which is the source given."""

GuardPath = tuple[tuple[Any, ...], ...]
"""Accessors of the guards' C core, each with what it takes."""


@dataclass(frozen=True, slots=True)
class Step:
    """What a kind of step means.

    Arguments:
        accessor: how the guards' C core reads it (`accessor_table` in `_core`); "" where `guard_path` says.
        spell: its spelling, of that of the path before it and the key.
        load: its instructions, after those that push the base.
        keyed: whether the accessor takes the key.
        friendly: whether users see it after the user's spelling of the base; if not, they see the developer's path.
    """

    accessor: str
    spell: Callable[[str, Any], str]
    load: Load
    keyed: bool = True
    friendly: bool = True


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Source:
    """One step of a path; compared and hashed by structure, the hash computed once.

    Arguments:
        base: the source that this step starts from; None for roots.
        key: what the step selects (a name, an index, a dict key).
    """

    step: ClassVar[Step]
    root_kind: ClassVar[str] = "constant"

    base: Source | None
    key: Any = None
    _text: str | None = field(default=None, init=False)
    _name: str | None = field(default=None, init=False)
    _identity: tuple[object, ...] = field(init=False)
    _hash: int = field(init=False)

    def __post_init__(self) -> None:
        identity = (type(self), type(self.key), self._key_identity(), self.base)
        object.__setattr__(self, "_identity", identity)
        object.__setattr__(self, "_hash", hash(identity))

    def _key_identity(self) -> object:
        """What of the key takes part in comparison."""
        return self.key

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Source) and self._hash == other._hash and self._identity == other._identity

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name()}>"

    @property
    def parent(self) -> Source:
        """The base, which exists: only roots have none."""
        if self.base is None:
            raise errors.InternalError(f"{type(self).__name__} has no base")
        return self.base

    def steps(self) -> Iterator[Source]:
        """The steps of the path, the last one first."""
        step: Source | None = self
        while step is not None:
            yield step
            step = step.base

    @property
    def root(self) -> Source:
        """The first step of the path."""
        source = self
        while source.base is not None:
            source = source.base
        return source

    @property
    def kind(self) -> str:
        """ "local", "global", "builtin", "closure" or "constant": what the path starts from."""
        return self.root.root_kind

    def name(self) -> str:
        """The developer's spelling."""
        name: str | None = self._name
        if name is None:
            name = self._spell_name()
            object.__setattr__(self, "_name", name)
        return name

    def _spell_name(self) -> str:
        """What `name` remembers."""
        return self.step.spell("" if self.base is None else self.base.name(), self.key)

    def friendly(self) -> str:
        """The user's spelling."""
        text: str | None = self._text
        if text is None:
            text = self._spell() if self.step.friendly else self.name()
            object.__setattr__(self, "_text", text)
        return text

    def _spell(self) -> str:
        """What `friendly` remembers."""
        return self.step.spell(self.parent.friendly(), self.key)

    def guard_node(self, tree: _C.GuardTree, nodes: dict[Source, int]) -> int:
        """The node of this path in the guard tree; `nodes` has those of earlier questions."""
        node = nodes.get(self)
        if node is None:
            node = 0 if self.base is None else self.base.guard_node(tree, nodes)
            for accessor, *arguments in self.guard_path():
                node = tree.child(node, accessor, *arguments)
            nodes[self] = node
        return node

    def guard_path(self) -> GuardPath:
        """From the base's node to this one."""
        return ((self.step.accessor, self.key) if self.step.keyed else (self.step.accessor,),)

    def load(self, target: LoadTarget) -> None:
        """Append the instructions that push the value."""
        if self.base is not None:
            target.load_source(self.base)
        self.step.load(target, self)


# ---------------------------------------------------------------------- where paths begin


class _Variable(Source):
    """What a name means in the root frame: `index` counts arguments as `FrameInfo.args` does, and free variables."""

    __slots__ = ("index",)
    index: int

    def __init__(self, name: str, index: int = -1) -> None:
        object.__setattr__(self, "index", index)
        super().__init__(None, name)

    def _spell(self) -> str:
        return str(self.key)

    def guard_path(self) -> GuardPath:
        return ((self.step.accessor, self.key if self.index < 0 else self.index),)


class LocalSource(_Variable):
    """An argument of the root frame."""

    __slots__ = ()
    root_kind = "local"
    step = Step("local", lambda _, key: f"L[{key!r}]", lambda to, at: to.load_local(at.key))


class GlobalSource(_Variable):
    """A name in the root frame's globals."""

    __slots__ = ()
    root_kind = "global"
    step = Step("global", lambda _, key: f"G[{key!r}]", lambda to, at: to.load_global(at.key))


class BuiltinSource(_Variable):
    """A name in the root frame's builtins."""

    __slots__ = ()
    root_kind = "builtin"
    step = Step("builtin", lambda _, key: f"B[{key!r}]", lambda to, at: to.load_global(at.key))


class ClosureSource(_Variable):
    """Contents of a free variable of the root frame."""

    __slots__ = ()
    root_kind = "closure"
    step = Step("closure", lambda _, key: f"C[{key!r}]", lambda to, at: to.load_closure(at.key))


class ClosureCellSource(_Variable):
    """The cell itself of a free variable of the root frame: can be reloaded, not guarded."""

    __slots__ = ()
    root_kind = "closure"
    step = Step("", lambda _, key: f"cell(C[{key!r}])", lambda to, at: to.load_closure_cell(at.key), friendly=False)

    def guard_path(self) -> GuardPath:
        raise errors.InternalError("a cell of the root frame cannot be guarded, only its contents")


def _const_label(_: str, obj: object) -> str:
    if isinstance(obj, dict) and isinstance(obj.get("__name__"), str):
        return f"globals({obj['__name__']})"
    return getattr(obj, "__qualname__", None) or getattr(obj, "__name__", None) or f"<{type(obj).__name__}>"


class ConstSource(Source):
    """An object held by the transformed code itself (globals of inlined functions, classes, modules)."""

    __slots__ = ("label",)
    label: str
    step = Step("const", _const_label, lambda to, at: to.load_const(at.key), friendly=False)

    def __init__(self, obj: object, label: str = "") -> None:
        object.__setattr__(self, "label", label)
        super().__init__(None, obj)

    def _key_identity(self) -> int:
        return id(self.key)

    def _spell_name(self) -> str:
        return self.label or super()._spell_name()


class ImportedSource(Source):
    """What `sys.modules` has under a name."""

    __slots__ = ()
    step = Step("dict_item", lambda _, key: f"sys.modules[{key!r}]", lambda to, at: to.subscript(at.key))

    def __init__(self, name: str) -> None:
        super().__init__(ConstSource(sys.modules), name)

    def _spell(self) -> str:
        return str(self.key)


# ---------------------------------------------------------------------- steps


def _attribute(accessor: str, name: str, friendly: bool = False) -> Step:
    """A part of an object that the C core knows as such, and Python as an attribute."""
    return Step(
        accessor, lambda base, _: f"{base}.{name}", lambda to, at: to.attr(name), keyed=False, friendly=friendly
    )


def _through(function: Function, keyed: bool = False) -> Load:
    """function(base), or function(base, key)."""
    return lambda to, at: to.call_helper(function, (at.key,) if keyed else ())


def _subscript(to: LoadTarget, at: Source) -> None:
    to.subscript(at.key)


class AttrSource(Source):
    """`getattr(base, name)`: slots, C descriptors, tensor attributes."""

    __slots__ = ()
    step = Step("attr", lambda base, key: f"{base}.{key}", lambda to, at: to.attr(at.key))


class FreshAttrSource(AttrSource):
    """An attribute that is a new object at each read, such as `C.__dict__`: each has a source of its own.

    Arguments:
        value: what this read gave, which lives as long as the capture.
    """

    __slots__ = ("read",)
    read: int

    def __init__(self, base: Source, name: str, value: object) -> None:
        object.__setattr__(self, "read", id(value))
        super().__init__(base, name)

    def _key_identity(self) -> tuple[str, int]:
        return self.key, self.read


class InstanceDictSource(Source):
    """The `__dict__` of an instance, a module object or a class instance."""

    __slots__ = ()
    step = _attribute("instance_dict", "__dict__", friendly=True)


class RawInstanceDictSource(InstanceDictSource):
    """That of an instance whose class has a `__getattribute__` of its own, which is not asked."""

    __slots__ = ()
    step = replace(InstanceDictSource.step, load=_through(namespace))


class ClassFacts(Protocol):
    """What of `TypeFacts` is asked here."""

    def lookup(self, cls: type, name: str) -> object: ...


def instance_dict(facts: ClassFacts, base: Source, obj: object) -> InstanceDictSource:
    """The source of the `__dict__` of an object that has a source."""
    own = facts.lookup(type(obj), "__getattribute__")
    return (InstanceDictSource if type(own) is types.WrapperDescriptorType else RawInstanceDictSource)(base)


_MODULE_TABLES = ("_modules", "_parameters", "_buffers")


class DictItemSource(Source):
    """Raw item of a dict (or dict subclass), by key. Prints as attribute access where the dict is an instance's."""

    __slots__ = ()
    step = Step("dict_item", lambda base, key: f"{base}[{_key_label(key)}]", _subscript)

    def _spell_name(self) -> str:
        base = self.parent
        if isinstance(base, InstanceDictSource) and isinstance(self.key, str) and self.key.isidentifier():
            return f"{base.parent.name()}.{self.key}"
        return super()._spell_name()

    def _spell(self) -> str:
        base = self.parent
        if isinstance(base, InstanceDictSource) and isinstance(self.key, str):
            return f"{base.parent.friendly()}.{self.key}"
        table = base.parent if isinstance(base, DictItemSource | AttrSource) else None
        if table is not None and base.key in _MODULE_TABLES and isinstance(self.key, str):
            owner = table.parent if isinstance(table, InstanceDictSource) else table
            return f"{owner.friendly()}[{self.key}]" if self.key.isdigit() else f"{owner.friendly()}.{self.key}"
        return super()._spell()


def _key_label(key: object) -> str:
    return getattr(key, "__qualname__", None) or repr(key)


class RawDictItemSource(DictItemSource):
    """Item of a dict subclass that overrides `__getitem__`: read with dict's own."""

    __slots__ = ()
    step = replace(DictItemSource.step, load=_through(dict.__getitem__, keyed=True))


def _in_order(parts: Function) -> Load:
    """parts(base)[key]."""

    def load(to: LoadTarget, at: Source) -> None:
        to.call_helper(parts)
        to.subscript(at.key)

    return load


class DictKeySource(Source):
    """The i-th key of a dict, in its order."""

    __slots__ = ()
    step = Step("dict_key", lambda base, key: f"list({base})[{key}]", _in_order(list), friendly=False)


def values_of(obj: dict[object, object]) -> tuple[object, ...]:
    """The values of a dict in its order."""
    return tuple(value for _, value in raw_items(obj))


class DictValueSource(Source):
    """What is at the i-th key of a dict, in its order."""

    __slots__ = ()
    step = Step("dict_value", lambda base, key: f"list({base}.values())[{key}]", _in_order(values_of), friendly=False)


class SequenceItemSource(Source):
    """Raw item of a list, tuple or deque, by position."""

    __slots__ = ()
    step = Step("sequence_item", lambda base, key: f"{base}[{key}]", _subscript)


class RawSequenceItemSource(SequenceItemSource):
    """Item of a list or tuple whose class overrides `__getitem__`: read with the base's own."""

    __slots__ = ()
    step = replace(SequenceItemSource.step, load=_through(raw_item, keyed=True))


class GetItemSource(Source):
    """`base[key]` with the object's own `__getitem__` (deque items, user mappings known to be pure)."""

    __slots__ = ()
    step = Step("getitem", lambda base, key: f"{base}[{key}]", _subscript)


def type_lookup(cls: type, name: str) -> object:
    """Raw lookup along the MRO, no descriptor run (what a TypeAttrSource means).

    Raises:
        AttributeError: no class of the MRO has the name.
    """
    for klass in cls.__mro__:
        if name in klass.__dict__:
            return klass.__dict__[name]
    raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")


class TypeAttrSource(Source):
    """Raw lookup of `name` along the MRO of a class (base is the class)."""

    __slots__ = ()
    step = Step("type_attr", lambda base, key: f"{base}.{key}", _through(type_lookup, keyed=True))


def _call_label(base: str, function: object) -> str:
    return f"{getattr(function, '__name__', function)}({base})"


class CallSource(Source):
    """`fn(base)` for a pure C-level function of argand's choice (`torch.get_default_dtype`-like reads of an object)."""

    __slots__ = ()
    step = Step("call", _call_label, lambda to, at: to.call_helper(at.key), friendly=False)


# ---------------------------------------------------------------------- parts of functions


def _load_cell(to: LoadTarget, at: Source) -> None:
    to.attr("__closure__")
    to.subscript(at.key)


def _load_cell_contents(to: LoadTarget, at: Source) -> None:
    _load_cell(to, at)
    to.attr("cell_contents")


class FuncCellSource(Source):
    """The i-th closure cell of a Python function: the cell itself, which a program can get hold of."""

    __slots__ = ()
    step = Step("", lambda base, key: f"{base}.__closure__[{key}]", _load_cell, friendly=False)

    def guard_path(self) -> GuardPath:
        return ("attr", "__closure__"), ("sequence_item", self.key)


class FuncClosureSource(Source):
    """Contents of the i-th closure cell of a Python function."""

    __slots__ = ()
    step = Step(
        "func_closure",
        lambda base, key: f"{base}.__closure__[{key}].cell_contents",
        _load_cell_contents,
        friendly=False,
    )


class CellContentsSource(Source):
    """Contents of a cell that has a source of its own."""

    __slots__ = ()
    step = _attribute("cell_contents", "cell_contents")

    def guard_node(self, tree: _C.GuardTree, nodes: dict[Source, int]) -> int:
        cell = self.parent
        if isinstance(cell, ClosureCellSource):
            return ClosureSource(cell.key, cell.index).guard_node(tree, nodes)
        if isinstance(cell, FuncCellSource):
            return FuncClosureSource(cell.base, cell.key).guard_node(tree, nodes)
        return super().guard_node(tree, nodes)


class FuncCodeSource(Source):
    """`function.__code__`."""

    __slots__ = ()
    step = _attribute("func_code", "__code__")


class FuncDefaultsTupleSource(Source):
    """`function.__defaults__`."""

    __slots__ = ()
    step = _attribute("func_defaults", "__defaults__")


class FuncKwdefaultsDictSource(Source):
    """`function.__kwdefaults__`."""

    __slots__ = ()
    step = _attribute("func_kwdefaults", "__kwdefaults__")


class MethodSelfSource(Source):
    """`method.__self__`."""

    __slots__ = ()
    step = _attribute("method_self", "__self__")


class MethodFuncSource(Source):
    """`method.__func__`."""

    __slots__ = ()
    step = _attribute("method_func", "__func__")


def FuncDefaultsSource(base: Source, index: int) -> SequenceItemSource:
    """The i-th positional default of a function."""
    return SequenceItemSource(FuncDefaultsTupleSource(base), index)


def FuncKwdefaultsSource(base: Source, key: str) -> DictItemSource:
    """A keyword-only default of a function."""
    return DictItemSource(FuncKwdefaultsDictSource(base), key)


# ---------------------------------------------------------------------- questions about paths


_PARTS_OF_MODULES = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
_LOOKUPS = frozenset(
    {LocalSource, GlobalSource, ConstSource, InstanceDictSource, RawInstanceDictSource, DictItemSource,
     RawDictItemSource, SequenceItemSource}
)  # fmt: skip


def root_of(source: Source) -> Source:
    """Where the way to it begins: an argument, a free variable, a global, a module, a constant."""
    while source.base is not None and type(source) is not ImportedSource:
        source = source.base
    return source


def is_module_table(source: Source) -> bool:
    """Whether it is one of the tables that make up a module of torch's."""
    return isinstance(source, DictItemSource | AttrSource) and source.key in _PARTS_OF_MODULES


def is_attribute(source: Source) -> bool:
    """Whether it is found in an object's attribute, at any depth."""
    return any(isinstance(step, AttrSource | InstanceDictSource) for step in source.steps())


def collectable(source: Source) -> bool:
    """Whether fetching it is a matter of lookups in dicts, lists and tuples, the same in C as in bytecode."""
    return all(type(step) in _LOOKUPS for step in source.steps())

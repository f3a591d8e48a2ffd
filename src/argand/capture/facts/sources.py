"""Where a value that capture met came from: small immutable paths that compose, print and reload themselves.

Every source is `(base, key)` plus a class that says what one step means. `name()` is the developer's spelling
(`L['self']._modules['fc'].weight`), `friendly()` the user's (`self.fc.weight`). `guard_node(tree)` is the path in the C
guard tree, `load(emitter)` the bytecode that reloads the value in transformed code.
"""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any, ClassVar

from argand import errors
from argand.capture.facts.kinds import namespace, raw_item
from argand.capture.facts.source_base import LoadTarget as LoadTarget
from argand.capture.facts.source_base import Source as Source
from argand.capture.facts.source_base import const_label, key_label

if TYPE_CHECKING:
    from argand._core import _C
    from argand.capture.facts.typefacts import TypeFacts


class LocalSource(Source):
    """An argument of the root frame: `index` counts as `FrameInfo.args` does."""

    __slots__ = ("index",)
    root_kind = "local"
    index: int

    def __init__(self, name: str, index: int) -> None:
        object.__setattr__(self, "index", index)
        super().__init__(None, name)

    def name(self) -> str:
        return f"L[{self.key!r}]"

    def _spell(self) -> str:
        return str(self.key)

    def guard_node(self, tree: _C.GuardTree) -> int:
        return tree.child(0, "local", self.index)

    def load(self, emitter: LoadTarget) -> None:
        emitter.load_local(self.key, self.index)


class GlobalSource(Source):
    """A name in the root frame's globals."""

    __slots__ = ()
    root_kind = "global"

    def __init__(self, name: str) -> None:
        super().__init__(None, name)

    def name(self) -> str:
        return f"G[{self.key!r}]"

    def _spell(self) -> str:
        return str(self.key)

    def guard_node(self, tree: _C.GuardTree) -> int:
        return tree.child(0, "global", self.key)

    def load(self, emitter: LoadTarget) -> None:
        emitter.load_global(self.key)


class BuiltinSource(Source):
    """A name in the root frame's builtins."""

    __slots__ = ()
    root_kind = "builtin"

    def __init__(self, name: str) -> None:
        super().__init__(None, name)

    def name(self) -> str:
        return f"B[{self.key!r}]"

    def _spell(self) -> str:
        return str(self.key)

    def guard_node(self, tree: _C.GuardTree) -> int:
        return tree.child(0, "builtin", self.key)

    def load(self, emitter: LoadTarget) -> None:
        emitter.load_global(self.key)


class ClosureSource(Source):
    """Contents of free variable `index` (named `name`) of the root frame."""

    __slots__ = ("index",)
    root_kind = "closure"
    index: int

    def __init__(self, name: str, index: int) -> None:
        object.__setattr__(self, "index", index)
        super().__init__(None, name)

    def name(self) -> str:
        return f"C[{self.key!r}]"

    def _spell(self) -> str:
        return str(self.key)

    def guard_node(self, tree: _C.GuardTree) -> int:
        return tree.child(0, "closure", self.index)

    def load(self, emitter: LoadTarget) -> None:
        emitter.load_closure(self.key, self.index)


class ClosureCellSource(Source):
    """The cell itself of a free variable of the root frame: can be reloaded, not guarded."""

    __slots__ = ("index",)
    root_kind = "closure"
    index: int

    def __init__(self, name: str, index: int) -> None:
        object.__setattr__(self, "index", index)
        super().__init__(None, name)

    def name(self) -> str:
        return f"cell(C[{self.key!r}])"

    def guard_node(self, tree: _C.GuardTree) -> int:
        raise errors.InternalError("a cell of the root frame cannot be guarded, only its contents")

    def load(self, emitter: LoadTarget) -> None:
        emitter.load_closure_cell(self.key, self.index)


class ConstSource(Source):
    """An object held by the transformed code itself (globals of inlined functions, classes, modules)."""

    __slots__ = ("label",)
    label: str

    def __init__(self, obj: Any, label: str = "") -> None:
        object.__setattr__(self, "label", label)
        super().__init__(None, obj)

    def _key_identity(self) -> Any:
        return id(self.key)

    def name(self) -> str:
        return self.label or const_label(self.key)

    def guard_node(self, tree: _C.GuardTree) -> int:
        return tree.child(0, "const", self.key)

    def load(self, emitter: LoadTarget) -> None:
        emitter.load_const(self.key)


class AttrSource(Source):
    """`getattr(base, name)`: slots, C descriptors, tensor attributes."""

    __slots__ = ()
    accessor = "attr"

    def __init__(self, base: Source, name: str) -> None:
        super().__init__(base, name)

    def name(self) -> str:
        return f"{self.parent.name()}.{self.key}"

    def _spell(self) -> str:
        return f"{self.parent.friendly()}.{self.key}"

    def load(self, emitter: LoadTarget) -> None:
        emitter.load_source(self.parent)
        emitter.attr(self.key)


class FreshAttrSource(AttrSource):
    """An attribute that is a new object at each read, such as `C.__dict__`: each has a source of its own.

    Arguments:
        value: what this read gave, which lives as long as the capture.
    """

    __slots__ = ("read",)

    read: int

    def __init__(self, base: Source, name: str, value: Any) -> None:
        object.__setattr__(self, "read", id(value))
        super().__init__(base, name)

    def _key_identity(self) -> Any:
        return self.key, self.read


class InstanceDictSource(Source):
    """The `__dict__` of an instance, a module object or a class instance."""

    __slots__ = ()
    accessor = "instance_dict"

    def __init__(self, base: Source) -> None:
        super().__init__(base)

    def name(self) -> str:
        return f"{self.parent.name()}.__dict__"

    def _spell(self) -> str:
        return f"{self.parent.friendly()}.__dict__"

    def load(self, emitter: LoadTarget) -> None:
        emitter.load_source(self.parent)
        emitter.attr("__dict__")


class RawInstanceDictSource(InstanceDictSource):
    """That of an instance whose class has a `__getattribute__` of its own, which is not asked."""

    __slots__ = ()

    def load(self, emitter: LoadTarget) -> None:
        emitter.load_source(self.parent)
        emitter.call_helper(namespace)


def instance_dict(facts: TypeFacts, base: Source, obj: Any) -> InstanceDictSource:
    """The source of the `__dict__` of an object that has a source."""
    own = facts.lookup(type(obj), "__getattribute__")
    return (InstanceDictSource if type(own) is types.WrapperDescriptorType else RawInstanceDictSource)(base)


_MODULE_TABLES = ("_modules", "_parameters", "_buffers")


class DictItemSource(Source):
    """Raw item of a dict (or dict subclass), by key. Prints as attribute access where the dict is an instance's."""

    __slots__ = ()
    accessor = "dict_item"

    def __init__(self, base: Source, key: Any) -> None:
        super().__init__(base, key)

    def name(self) -> str:
        base = self.parent
        if isinstance(base, InstanceDictSource) and isinstance(self.key, str) and self.key.isidentifier():
            return f"{base.parent.name()}.{self.key}"
        return f"{base.name()}[{key_label(self.key)}]"

    def _spell(self) -> str:
        base = self.parent
        if isinstance(base, InstanceDictSource) and isinstance(self.key, str):
            return f"{base.parent.friendly()}.{self.key}"
        table = base.parent if isinstance(base, DictItemSource | AttrSource) else None
        if table is not None and base.key in _MODULE_TABLES and isinstance(self.key, str):
            owner = table.parent if isinstance(table, InstanceDictSource) else table
            return f"{owner.friendly()}[{self.key}]" if self.key.isdigit() else f"{owner.friendly()}.{self.key}"
        return f"{base.friendly()}[{key_label(self.key)}]"

    def load(self, emitter: LoadTarget) -> None:
        emitter.load_source(self.parent)
        emitter.subscript(self.key)


class RawDictItemSource(DictItemSource):
    """Item of a dict subclass that overrides `__getitem__`: read with dict's own."""

    __slots__ = ()

    def load(self, emitter: LoadTarget) -> None:
        emitter.load_source(self.parent)
        emitter.call_helper(dict.__getitem__, (self.key,))


class DictKeySource(Source):
    """The i-th key of a dict, in its order."""

    __slots__ = ()
    accessor = "dict_key"

    def __init__(self, base: Source, index: int) -> None:
        super().__init__(base, index)

    def name(self) -> str:
        return f"list({self.parent.name()})[{self.key}]"

    def load(self, emitter: LoadTarget) -> None:
        emitter.load_source(self.parent)
        emitter.call_helper(list)
        emitter.subscript(self.key)


class SequenceItemSource(Source):
    """Raw item of a list, tuple or deque, by position."""

    __slots__ = ()
    accessor = "sequence_item"

    def __init__(self, base: Source, index: int) -> None:
        super().__init__(base, index)

    def name(self) -> str:
        return f"{self.parent.name()}[{self.key}]"

    def _spell(self) -> str:
        return f"{self.parent.friendly()}[{self.key}]"

    def load(self, emitter: LoadTarget) -> None:
        emitter.load_source(self.parent)
        emitter.subscript(self.key)


class RawSequenceItemSource(SequenceItemSource):
    """Item of a list or tuple whose class overrides `__getitem__`: read with the base's own."""

    __slots__ = ()

    def load(self, emitter: LoadTarget) -> None:
        emitter.load_source(self.parent)
        emitter.call_helper(raw_item, (self.key,))


class GetItemSource(Source):
    """`base[key]` with the object's own `__getitem__` (deque items, user mappings known to be pure)."""

    __slots__ = ()
    accessor = "getitem"

    def __init__(self, base: Source, key: Any) -> None:
        super().__init__(base, key)

    def name(self) -> str:
        return f"{self.parent.name()}[{key_label(self.key)}]"

    def _spell(self) -> str:
        return f"{self.parent.friendly()}[{key_label(self.key)}]"

    def load(self, emitter: LoadTarget) -> None:
        emitter.load_source(self.parent)
        emitter.subscript(self.key)


class TypeSource(Source):
    """`type(base)`."""

    __slots__ = ()
    accessor = "type"

    def __init__(self, base: Source) -> None:
        super().__init__(base)

    def name(self) -> str:
        return f"type({self.parent.name()})"

    def _spell(self) -> str:
        return f"type({self.parent.friendly()})"

    def load(self, emitter: LoadTarget) -> None:
        emitter.load_source(self.parent)
        emitter.call_helper(type)


def type_lookup(cls: type, name: str) -> Any:
    """Raw lookup along the MRO, no descriptor run (what a TypeAttrSource means).

    Raises:
        AttributeError: no class of the MRO has the name.
    """
    for klass in cls.__mro__:
        if name in klass.__dict__:
            return klass.__dict__[name]
    raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")


_PLAIN_PATH = frozenset(
    {LocalSource, GlobalSource, ConstSource, InstanceDictSource, RawInstanceDictSource, DictItemSource,
     RawDictItemSource, SequenceItemSource}
)  # fmt: skip


class ImportedSource(Source):
    """What `sys.modules` has under a name."""

    __slots__ = ()
    accessor = "dict_item"

    def __init__(self, name: str) -> None:
        super().__init__(ConstSource(sys.modules), name)

    def name(self) -> str:
        return f"sys.modules[{self.key!r}]"

    def _spell(self) -> str:
        return str(self.key)

    def load(self, emitter: LoadTarget) -> None:
        emitter.load_source(self.parent)
        emitter.subscript(self.key)


def root_of(source: Source) -> Source:
    """Where the way to it begins: an argument, a free variable, a global, a module, a constant."""
    while source.base is not None and type(source) is not ImportedSource:
        source = source.base
    return source


def collectable(source: Source) -> bool:
    """Whether fetching it is a matter of lookups in dicts, lists and tuples, the same in C as in bytecode."""
    step: Source | None = source
    while step is not None:
        if type(step) not in _PLAIN_PATH:
            return False
        step = step.base
    return True


class TypeAttrSource(Source):
    """Raw lookup of `name` along the MRO of a class (base is the class)."""

    __slots__ = ()
    accessor = "type_attr"

    def __init__(self, base: Source, name: str) -> None:
        super().__init__(base, name)

    def name(self) -> str:
        return f"{self.parent.name()}.{self.key}"

    def _spell(self) -> str:
        return f"{self.parent.friendly()}.{self.key}"

    def load(self, emitter: LoadTarget) -> None:
        emitter.load_source(self.parent)
        emitter.call_helper(type_lookup, (self.key,))


class FuncCellSource(Source):
    """The i-th closure cell of a Python function: the cell itself, which a program can get hold of."""

    __slots__ = ()

    def __init__(self, base: Source, index: int) -> None:
        super().__init__(base, index)

    def name(self) -> str:
        return f"{self.parent.name()}.__closure__[{self.key}]"

    def guard_node(self, tree: _C.GuardTree) -> int:
        closure = tree.child(self.parent.guard_node(tree), "attr", "__closure__")
        return tree.child(closure, "sequence_item", self.key)

    def load(self, emitter: LoadTarget) -> None:
        emitter.load_source(self.parent)
        emitter.attr("__closure__")
        emitter.subscript(self.key)


class FuncClosureSource(Source):
    """Contents of the i-th closure cell of a Python function."""

    __slots__ = ()
    accessor = "func_closure"

    def __init__(self, base: Source, index: int) -> None:
        super().__init__(base, index)

    def name(self) -> str:
        return f"{self.parent.name()}.__closure__[{self.key}].cell_contents"

    def load(self, emitter: LoadTarget) -> None:
        emitter.load_source(self.parent)
        emitter.attr("__closure__")
        emitter.subscript(self.key)
        emitter.attr("cell_contents")


class CellContentsSource(Source):
    """Contents of a cell that has a source of its own."""

    __slots__ = ()
    accessor = "cell_contents"

    def __init__(self, base: Source) -> None:
        super().__init__(base)

    def name(self) -> str:
        return f"{self.parent.name()}.cell_contents"

    def guard_node(self, tree: _C.GuardTree) -> int:
        base = self.parent
        if isinstance(base, ClosureCellSource):
            return tree.child(0, "closure", base.index)
        if isinstance(base, FuncCellSource):
            return tree.child(base.parent.guard_node(tree), "func_closure", base.key)
        return super().guard_node(tree)

    def load(self, emitter: LoadTarget) -> None:
        emitter.load_source(self.parent)
        emitter.attr("cell_contents")


class _FunctionPartSource(Source):
    """A part of a Python function that an attribute holds."""

    __slots__ = ()
    attribute: ClassVar[str]

    def __init__(self, base: Source) -> None:
        super().__init__(base)

    def name(self) -> str:
        return f"{self.parent.name()}.{self.attribute}"

    def load(self, emitter: LoadTarget) -> None:
        emitter.load_source(self.parent)
        emitter.attr(self.attribute)


class FuncCodeSource(_FunctionPartSource):
    """`function.__code__`."""

    __slots__ = ()
    accessor = "func_code"
    attribute = "__code__"


class FuncDefaultsTupleSource(_FunctionPartSource):
    """`function.__defaults__`."""

    __slots__ = ()
    accessor = "func_defaults"
    attribute = "__defaults__"


class FuncKwdefaultsDictSource(_FunctionPartSource):
    """`function.__kwdefaults__`."""

    __slots__ = ()
    accessor = "func_kwdefaults"
    attribute = "__kwdefaults__"


class FuncGlobalsSource(_FunctionPartSource):
    """`function.__globals__`."""

    __slots__ = ()
    accessor = "func_globals"
    attribute = "__globals__"


class MethodSelfSource(_FunctionPartSource):
    """`method.__self__`."""

    __slots__ = ()
    accessor = "method_self"
    attribute = "__self__"


class MethodFuncSource(_FunctionPartSource):
    """`method.__func__`."""

    __slots__ = ()
    accessor = "method_func"
    attribute = "__func__"


def FuncDefaultsSource(base: Source, index: int) -> SequenceItemSource:
    """The i-th positional default of a function."""
    return SequenceItemSource(FuncDefaultsTupleSource(base), index)


def FuncKwdefaultsSource(base: Source, key: str) -> DictItemSource:
    """A keyword-only default of a function."""
    return DictItemSource(FuncKwdefaultsDictSource(base), key)


class CallSource(Source):
    """`fn(base)` for a pure C-level function of argand's choice (`torch.get_default_dtype`-like reads of an object)."""

    __slots__ = ()
    accessor = "call"

    def __init__(self, base: Source, fn: Any) -> None:
        super().__init__(base, fn)

    def _key_identity(self) -> Any:
        return id(self.key)

    def name(self) -> str:
        return f"{getattr(self.key, '__name__', self.key)}({self.parent.name()})"

    def load(self, emitter: LoadTarget) -> None:
        emitter.load_source(self.parent)
        emitter.call_helper(self.key)

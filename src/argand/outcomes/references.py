"""Objects in words that a later process understands: by value, or by where they live.

An object becomes a row of a table, which other rows refer to by number. Objects whose identity matters (functions,
classes, modules, namespaces) are described by a path from a module, or by the place among the frame's values where the
guards find them; `Checks` say what they must be like there. Nothing that only this process knows is described.
"""

from __future__ import annotations

import builtins
import functools
import operator
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from enum import Enum
from typing import Any, Final

import torch
from torch import fx

from argand._core import _C
from argand.bytecode import generators_at_yields
from argand.errors import ArgandError
from argand.graph.nodes import codec
from argand.outcomes import fingerprints
from argand.outcomes.resume_codes import PARTS, Origin, unlabelled
from argand.quick_dataclasses import dataclass
from argand.runtime.environment import gpu
from argand.runtime.recipes import Recipe, recipe_of

Row = tuple[Any, ...]
Parts = tuple[str, tuple[object, ...]] | tuple[str, tuple[object, ...], str]
_CONTAINERS: Final = {tuple: "tuple", list: "list", set: "set", frozenset: "frozenset", torch.Size: "size"}
_NAMES: Final = {torch.dtype: "dtype", torch.layout: "layout", torch.memory_format: "memory_format"}
DESCRIPTORS: Final = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.ClassMethodDescriptorType,
)
_HOMES: Final = (
    "torch", "torch._C", "torch._C._nn", "torch.nn.functional", "torch._C._functorch", "operator", "math", "builtins",
    "torch._C._linalg", "torch._C._fft", "torch._C._special", "torch.special", "torch.linalg", "torch.fft",
    "torch._C._autograd",
)  # fmt: skip
"""Modules that have functions of C which do not say where they live."""
_MEMOIZED: Final = type(functools.lru_cache(lambda: None))
_OF_NUMPY: Final = ("numpy.ufunc", "numpy._ArrayFunctionDispatcher")
"""Classes of numpy's functions."""
_NUMBERS_OF_NUMPY: Final = frozenset((
    "bool", "bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
    "float64", "complex64", "complex128",
))  # fmt: skip
_DEPTH: Final = 4
_LOCATED: Final = frozenset((
    "torch", "modules", "globals", "globals of", "frame globals", "module", "member", "operator", "path", "raw", "held",
    "class of", "place", "part", "suspended",
))  # fmt: skip


class Unstorable(Exception):
    """Something that no other process would understand."""


@dataclass(slots=True)
class Checks:
    """What has to hold of objects that are found by their place.

    Fields:
        functions: (row, digest of the function, row of its globals).
        codes: (row, digest of the code object).
        classes: (row, names that matter or None, digest of the class).
        registered: (row of a class, row of an abstract one that it does not derive from).
        operators: (name of an operator of a library's, digest of what it is made of).
        modules: names of those that they come from.
    """

    functions: list[tuple[int, str, int]] = field(default_factory=list)
    codes: list[tuple[int, str]] = field(default_factory=list)
    classes: list[tuple[int, tuple[str, ...] | None, str]] = field(default_factory=list)
    registered: list[tuple[int, int]] = field(default_factory=list)
    operators: list[tuple[str, str]] = field(default_factory=list)
    modules: set[str] = field(default_factory=set)


class Describer:
    """The table of one outcome.

    Arguments:
        code: the frame's.
        namespace: the frame's globals.
        places: id of an object that the guards find -> (node, whether it is the value there or its class).
        special: how further types are described: type -> (function of argand's that makes one, its arguments, and,
            where one must not be made that the guards find, the function that takes that and the arguments).
        aliases: id of an object -> the one that takes its place in other processes.
        asked: classes that the guards look into, and the names that they look up there.
        region: the one that the frame is captured in; another process has its own.
    """

    def __init__(
        self,
        code: types.CodeType,
        namespace: dict[str, Any],
        places: Mapping[int, tuple[int, str]],
        special: Mapping[type, Callable[[Any], Parts]] | None = None,
        aliases: Mapping[int, object] | None = None,
        asked: Mapping[type, Iterable[str]] | None = None,
        region: object = None,
    ) -> None:
        self.code = code
        self.namespace = namespace
        self.places = places
        self.special = special or {}
        self.aliases = aliases or {}
        self.asked = asked or {}
        self.region = region
        self.rows: list[Row] = []
        self.checks = Checks()
        self._numbers: dict[int, int] = {}
        self._kept: list[object] = []
        self._open: set[int] = set()
        self._unchecked: list[tuple[types.FunctionType, int]] = []
        self._classes: dict[tuple[str, ...] | None, fingerprints.Classes] = {}

    def argument(self, value: Any) -> tuple[Any, bool]:
        """An argument of a call: (the value, False) if it is plain, else (its row, True)."""
        return (value, False) if plain(value) else (self.row(value), True)

    def row(self, obj: Any) -> int:
        """The number of the object's row.

        Raises:
            Unstorable: no other process would understand it.
        """
        obj = self.aliases.get(id(obj), obj)
        number = self._numbers.get(id(obj))
        if number is None:
            if id(obj) in self._open:
                raise Unstorable(f"a {fingerprints.name_of(type(obj))} that holds itself")
            self._open.add(id(obj))
            described = self._describe(obj)
            self._open.discard(id(obj))
            number = self._numbers[id(obj)] = len(self.rows)
            self._kept.append(obj)
            self.rows.append(described)
            if type(obj) is types.FunctionType and described[0] != "part function":
                self._unchecked.append((obj, number))
            elif type(obj) is types.CodeType and described[0] == "place":
                self.checks.codes.append((number, fingerprints.of_code(obj)))
            elif issubclass(type(obj), type):
                self._note_module(obj)
                if described[0] == "place":  # whatever is looked up in it is checked besides
                    self.check_class(obj, ())
            while self._unchecked and not self._open:  # the way to a function's globals may lead by the function
                self._check_function(*self._unchecked.pop())
        return number

    def identities(self) -> list[tuple[int, object]]:
        """(row, object) where a row stands for an object that exists already."""
        return [(self._numbers[id(obj)], obj) for obj in self._kept if self.rows[self._numbers[id(obj)]][0] in _LOCATED]

    def check_class(self, cls: type, names: Iterable[str] | None) -> None:
        """The class must have the same under these names."""
        wanted = None if names is None else tuple(sorted(names))
        classes = self._classes.setdefault(wanted, fingerprints.Classes(names if names is None else set(names)))
        digest = classes.digest(cls)
        if digest is None:
            raise Unstorable(f"what class {fingerprints.qualname_of(cls)} holds cannot be told from other values")
        self.checks.classes.append((self.row(cls), wanted, digest))
        for klass in fingerprints.mro_of(cls):
            self._note_module(klass)

    def _check_function(self, function: types.FunctionType, number: int) -> None:
        if recipe_of(function) is None:
            namespace = self.row(function.__globals__)
            self.checks.functions.append((number, fingerprints.of_function(function), namespace))
            self._note_module(function)

    def _note_module(self, held: types.FunctionType | type) -> None:
        home = held.__module__ if type(held) is types.FunctionType else fingerprints.module_of(held)
        if type(home) is str and not home.startswith("argand."):  # `environment` knows these
            self.checks.modules.add(home)

    def _describe(self, obj: Any) -> Row:
        cls = type(obj)
        if plain(obj):
            return ("value", obj)
        if cls in self.special:
            maker, arguments, *finder = self.special[cls](obj)
            parts = [self.row(part) for part in arguments]
            if finder and id(obj) in self.places:
                self.rows.append(("place", *self.places[id(obj)]))
                maker, parts = finder[0], [len(self.rows) - 1, *parts]
            return ("made", maker, tuple(parts))
        if cls in _CONTAINERS:
            return (_CONTAINERS[cls], tuple([self.row(item) for item in obj]))
        if cls in _NAMES:
            return ("torch", str(obj).removeprefix("torch."))
        if cls is torch.device:
            return ("device", obj.type, obj.index, _about(obj))
        name = fingerprints.qualname_of(cls)
        if name in _NUMBERS_OF_NUMPY and vars(sys.modules.get("numpy", types)).get(name) is cls:
            self.checks.modules.add("numpy.version")
            return ("number of numpy", name, obj.tobytes())
        if cls in (slice, range):
            return (cls.__name__, tuple([self.row(part) for part in (obj.start, obj.stop, obj.step)]))
        if cls is dict:
            return self._namespace(obj)
        if obj is self.code:
            return ("frame code",)
        if obj is self.region:
            return ("frame region",)
        if cls is types.CodeType:
            if (stands := generators_at_yields.suspended(obj)) is not None:
                return ("suspended", self._users_code(stands.code()), stands.at, stands.stack, stands.names)
            if id(obj) in self.places:
                return ("place", *self.places[id(obj)])
            if _odd_constants(obj):
                raise Unstorable("a code object with constants of its own")
            part = PARTS.of(obj)
            return ("code", obj) if part is None else self._part_of(part, obj)
        if cls is types.FunctionType and PARTS.of(obj.__code__) is not None and obj.__globals__ is self.namespace:
            return ("part function", self.row(obj.__code__))
        return self._by_place(obj)

    def _part_of(self, part: Origin, code: types.CodeType) -> Row:
        if part.code() is not PARTS.users(self.code):
            raise Unstorable("a resume function of another function")
        return ("part", unlabelled(code), tuple(part.place))

    def _users_code(self, code: types.CodeType | None) -> int:
        """Code of the program's, by a function that has it, or one within which it is."""
        users = PARTS.users(self.code)
        ways: list[tuple[int | None, tuple[int, ...] | None]] = [(None, _way_to(code, users))]
        name = "" if code is None else code.co_qualname.partition(".<locals>")[0]
        for home, module in list(sys.modules.items()):
            if code is None or ways[-1][1] is not None:
                break
            if getattr(module, "__file__", None) == code.co_filename:
                for holder, _ in _held_by(reached(home, name)):
                    if type(holder) is types.FunctionType and (way := _way_to(code, holder.__code__)) is not None:
                        ways.append((self.row(holder), way))
                        break
        function, way = ways[-1]
        if code is None or way is None:
            raise Unstorable("a generator of a function that is found in no module")
        self.rows.append(("code within", function, way))
        self.checks.codes.append((len(self.rows) - 1, fingerprints.of_code(code)))
        return len(self.rows) - 1

    def _namespace(self, obj: dict[Any, Any]) -> Row:
        """A dict by where it is the namespace; its contents are guarded."""
        if obj is sys.modules:
            return ("modules",)
        name = obj.get("__name__")
        module = sys.modules.get(name) if type(name) is str else None
        if module is not None and vars(module) is obj:
            return ("globals", name)
        if obj is self.namespace:
            return ("frame globals",)
        if obj is vars(builtins):
            return ("globals", "builtins")
        for known in list(sys.modules.values()):
            if isinstance(known, types.ModuleType) and vars(known) is obj:
                return ("globals", _module_name(known))
        for _, _, held in self._looked_up():  # of a function whose text was run for it alone, as a named tuple's
            method = held.__func__ if isinstance(held, staticmethod | classmethod) else held
            if type(method) is types.FunctionType and method.__globals__ is obj:
                return ("globals of", self.row(method))
        for kept in self._kept:  # of one that the guards find: of a graph
            if type(kept) is types.FunctionType and kept.__globals__ is obj:
                number = self._numbers[id(kept)]
                if self.rows[number][0] == "place":
                    return ("globals of", number)
        raise Unstorable("a dict that is no module's")

    def _by_place(self, obj: Any) -> Row:
        cls = type(obj)
        if cls is torch._ops._OpNamespace:
            return ("path", "torch._ops", f"ops.{obj.name}", (), fingerprints.name_of(cls))
        if issubclass(cls, types.ModuleType):
            return ("module", _module_name(obj))
        if issubclass(cls, Enum):
            name = vars(obj).get("_name_")
            if type(name) is str and cls._member_map_.get(name) is obj:
                return ("member", self.row(cls), name)
        if cls is torch._ops.OpOverload:
            return ("operator", obj.namespace, obj._schema.name.partition("::")[2], obj._overloadname)
        if cls is functools.partial:
            return ("partial", self.row(obj.func), tuple(map(self.row, obj.args)), self._pairs(obj.keywords))
        if cls is types.MethodType and isinstance(obj.__self__, fx.GraphModule):
            return self._graph(obj.__self__)
        recipe = recipe_of(obj)
        if recipe is not None:
            return self._recipe(recipe)
        if cls is _C.Region and obj.callback is None:
            return ("region", self.row(obj.fn))
        path = self._path(obj) or self._in_class(obj)
        if path is not None:
            return (*path, fingerprints.name_of(cls)) if path[0] == "path" else path
        if id(obj) in self.places and _replaceable(obj):
            return ("place", *self.places[id(obj)])
        named = f" {obj.__qualname__}" if cls is types.FunctionType or issubclass(cls, type) else ""
        raise Unstorable(f"a {fingerprints.name_of(cls)}{named} that is found in no module")

    def _graph(self, module: fx.GraphModule) -> Row:
        used: set[int] = set()

        def row(obj: object) -> int:
            number = self.row(obj)
            used.add(number)
            return number

        try:
            encoded = codec.encode(module, row)
        except codec.NoText as error:
            raise Unstorable(str(error)) from error
        undone = ("row", self.row(tuple(module.meta.get("undone", ()))))
        return ("recipe", "graph", (("graph", (encoded, tuple(used))), undone))

    def _recipe(self, recipe: Recipe) -> Row:
        try:
            parts = recipe.parts()
        except ArgandError as error:
            raise Unstorable(str(error)) from error
        return ("recipe", recipe.kind, tuple([self._given(part) for part in parts]))

    def _given(self, part: Any) -> Any:
        if type(part) is dict:
            return ("names", self._pairs(part))
        return ("row", self.row(part))

    def _pairs(self, named: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
        return tuple([(name, self.row(value)) for name, value in named.items()])

    def _in_class(self, obj: Any) -> Row | None:
        """A function that a class holds under another name than its own, by itself or within a decorator's; a class
        that torch made for one; a metaclass (pybind11's, which no module has)."""
        if issubclass(type(obj), type):
            spaces = fingerprints.namespace_of
            forward: Any = spaces(obj).get("_forward_cls")
            is_backward = issubclass(type(forward), type) and spaces(forward).get("_backward_cls") is obj
            if is_backward:
                return ("backward class", self.row(forward))
            own = next((cls for cls in vars(torch._C).values() if type(cls) is obj), None)
            return None if own is None else ("class of", self.row(own))
        if type(obj) is not types.FunctionType:
            return None
        for klass, name, held in self._looked_up():
            steps = _within(held, obj) if type(held) in (types.FunctionType, staticmethod, classmethod) else None
            if steps is not None:
                return ("held", self.row(klass), name, steps)
        return None

    def _looked_up(self) -> Iterator[tuple[type, str, Any]]:
        """What classes hold under the names that the guards look up: (class, name, what it is)."""
        for cls, names in self.asked.items():
            for klass in fingerprints.mro_of(cls):
                for name in names if klass is not object else ():
                    held = fingerprints.namespace_of(klass).get(name)
                    if held is not None:
                        yield klass, name, held

    def _path(self, obj: Any) -> Row | None:
        """The way to a function, class or object from a module."""
        cls = type(obj)
        if cls in DESCRIPTORS:
            return ("raw", self.row(obj.__objclass__), obj.__name__)
        if cls is types.FunctionType or issubclass(cls, type):
            of_class = issubclass(cls, type)
            home = fingerprints.module_of(obj) if of_class else obj.__module__
            name = fingerprints.qualname_of(obj) if of_class else obj.__qualname__
            held = reached(home, name) if type(home) is str and type(name) is str else None
            if held is obj:
                return ("path", home, name, ())
            if issubclass(cls, type):
                return _type_of_python(obj)
            steps = _within(held, obj) if held is not None else None
            return ("path", home, name, steps) if steps else None
        if cls is _MEMOIZED and reached(obj.__module__, obj.__qualname__) is obj:
            self.row(obj.__wrapped__)  # which is checked
            return ("path", obj.__module__, obj.__qualname__, ())
        if cls is types.BuiltinFunctionType:
            homes = [obj.__module__, *_HOMES] if type(obj.__module__) is str else _HOMES
            places = [(home, obj.__name__) for home in homes]
            if issubclass(type(obj.__self__), type):  # `tuple.__new__`
                owner = fingerprints.qualname_of(obj.__self__)
                places.append((fingerprints.module_of(obj.__self__), f"{owner}.{obj.__name__}"))
            place = next((place for place in places if reached(*place) is obj), None)
            return ("path", *place, ()) if place is not None else None
        if (
            fingerprints.name_of(cls) in _OF_NUMPY
            and reached(home := getattr(obj, "__module__", "numpy"), obj.__name__) is obj
        ):
            self.checks.modules.add("numpy.version")
            return ("path", home, obj.__name__, ())
        return _held_by_module(obj) if fingerprints.of_plain_objects(cls) else None


def _type_of_python(cls: type) -> Row | None:
    """A type of Python's own that `builtins` has no name for: of methods, of iterators."""
    for home in ("types", "_collections_abc"):
        for name, value in vars(sys.modules[home]).items():
            if value is cls:
                return ("path", home, name, ())
    return None


def _about(device: torch.device) -> str:
    """What must be the same of a device in another process."""
    if device.type in ("cpu", "meta"):
        return ""
    if device.type != "cuda" or not torch.cuda.is_initialized():
        raise Unstorable(f"tensors on {device}")
    return gpu(device)


def _replaceable(obj: object) -> bool:
    """Whether another object at the same place, of which the same is checked, means the same."""
    cls = type(obj)
    return cls is types.FunctionType or issubclass(cls, type) or fingerprints.of_plain_objects(cls)


def plain(value: Any) -> bool:
    """Whether marshal writes a value as it is: atoms, and tuples of them."""
    if type(value) is not tuple:
        return type(value) in _MARSHALLED
    for item in value:  # noqa: SIM110  a generator takes twice as long
        if type(item) not in _MARSHALLED and not plain(item):
            return False
    return True


_MARSHALLED: Final = fingerprints.ATOMS - {type(NotImplemented)}


def _odd_constants(code: types.CodeType) -> bool:
    return not all(
        plain(const) or (type(const) is types.CodeType and not _odd_constants(const)) or type(const) is frozenset
        for const in code.co_consts
    )


def _module_name(module: types.ModuleType) -> str:
    name = module.__name__
    if sys.modules.get(name) is module:
        return name
    for key, value in list(sys.modules.items()):
        if value is module:
            return key
    raise Unstorable(f"module {name} is not among the imported ones")


def reached(home: str, name: str) -> Any:
    """What a module has under a qualified name, of classes without their descriptors' answers; None if nothing."""
    held: Any = sys.modules.get(home)
    for part in name.split("."):
        if held is None:
            return None
        if issubclass(type(held), type):
            namespaces = map(fingerprints.namespace_of, fingerprints.mro_of(held))
            held = next((namespace[part] for namespace in namespaces if part in namespace), None)
        else:
            held = getattr(held, "__dict__", {}).get(part)
        if isinstance(held, staticmethod | classmethod):
            held = held.__func__
    return held


STEPS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "wrapped": lambda fn: vars(fn).get("__wrapped__"),
    "func": operator.attrgetter("__func__"),
    "fget": operator.attrgetter("fget"),
    "fset": operator.attrgetter("fset"),
}


def step(obj: Any, way: tuple[Any, ...]) -> Any:
    """One step from a function to another that it holds; None where there is none."""
    try:
        return obj.__closure__[way[1]].cell_contents if way[0] == "cell" else STEPS[way[0]](obj)
    except (AttributeError, IndexError, TypeError, ValueError):
        return None


def _within(outermost: Any, wanted: object) -> tuple[tuple[Any, ...], ...] | None:
    """The steps from what a name leads to, a decorator's function, to the function that it holds."""
    return next((steps for holder, steps in _held_by(outermost) if holder is wanted), None)


def _held_by(outermost: Any) -> Iterator[tuple[Any, tuple[tuple[Any, ...], ...]]]:
    """What a decorator's function holds, itself first, with the steps that lead there."""
    pending: list[tuple[Any, tuple[tuple[Any, ...], ...]]] = [(outermost, ())]
    seen: set[int] = set()
    while pending:
        holder, steps = pending.pop(0)
        yield holder, steps
        if id(holder) in seen or len(steps) >= _DEPTH:
            continue
        seen.add(id(holder))
        if isinstance(holder, types.FunctionType):
            ways: list[tuple[Any, ...]] = [("wrapped",)]
            ways += [("cell", i) for i in range(len(holder.__closure__ or ()))]
        elif type(holder) is _MEMOIZED:
            ways = [("wrapped",)]
        elif isinstance(holder, property):
            ways = [("fget",), ("fset",)]
        else:
            ways = [("func",)] if isinstance(holder, types.MethodType | staticmethod | classmethod) else []
        pending += [(inner, (*steps, way)) for way in ways if (inner := step(holder, way)) is not None]


def _way_to(code: types.CodeType | None, outer: types.CodeType) -> tuple[int, ...] | None:
    """The places among constants that lead from one code object to one within; None where none do."""
    if code is outer:
        return ()
    for place, const in enumerate(outer.co_consts):
        if type(const) is types.CodeType and (way := _way_to(code, const)) is not None:
            return (place, *way)
    return None


def _held_by_module(obj: object) -> Row | None:
    """An object that the module of its class holds under a name."""
    home = fingerprints.module_of(type(obj))
    for name, value in vars(sys.modules.get(home, types)).items():
        if value is obj:
            return ("path", home, name, ())
    return None

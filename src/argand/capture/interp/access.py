"""What the interpreter asks about objects: is it outer, can native code have it, what stands for it.

Base class of `Interpreter`; the questions come from every operator and handler, the answers from the capture state.
"""

from __future__ import annotations

import abc
import collections
import enum
import operator
import types
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import torch

import argand.capture.interp.handlers  # noqa: F401  (registers them: `wants` looks into their tables)
from argand.capture.facts import classify
from argand.capture.facts.abc_non_members import Unregistered
from argand.capture.facts.code.effort_limits import Patience
from argand.capture.facts.exceptions import CAPTURE_FOLDER, InternalFailure, ObservedException, innermost_file
from argand.capture.facts.frames import NULL, CodePlace, Frame, LazyLocal
from argand.capture.facts.handlers import Function
from argand.capture.facts.kinds import held_items, is_a, is_numpy_array, module_of, raw_length
from argand.capture.facts.overlays import DELETED, UNSET
from argand.capture.facts.sources import ConstSource, LocalSource, Source
from argand.capture.facts.typefacts import (
    ATOMS,
    BOUND_METHODS,
    BUFFERS,
    CONTAINERS,
    TypeFacts,
    is_heap,
    is_native,
)
from argand.capture.facts.values.symbolic import SYMBOLIC, SymbolicNumber, SymbolicSize
from argand.capture.facts.values.tainted_values import TaintedText, formatted_tensor
from argand.capture.interp.state import CaptureState
from argand.capture.objects.call_protocol import native_handlers
from argand.capture.objects.call_protocol.binding import guarded_by_code
from argand.capture.objects.text_proxy import PLAIN_VALUES, standing_for, textual, textual_items
from argand.capture.record import contiguity, numpy_functions, tensor_attributes
from argand.capture.torch_functions import torch_calls
from argand.capture.world import additions, identity, native_reads
from argand.capture.world.native_reads import unseen_object
from argand.errors import graph_break

_COMPARISONS = frozenset(native_reads.READS["compare"] + native_reads.READS["hash"])
_TORCH_VALUES: Final = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, torch.Tag)
_PLAIN_METACLASSES: frozenset[type] = frozenset({type, abc.ABCMeta, enum.EnumMeta})
_ITERATOR_MODULES = ("builtins", "itertools", "collections", "_collections", "functools", "_functools", "re", "numpy")


def _own_getitem(container: Any, key: object) -> object:
    """An item of a container, past any `__getitem__` of its class, which is the program's and not asked here."""
    for base in CONTAINERS:
        if is_a(container, base) and hasattr(base, "__getitem__"):
            return base.__getitem__(container, key)
    return container[key]


_AN_EMPTY_DEQUE: Final[collections.deque[object]] = collections.deque(maxlen=0)


def raised_here(error: BaseException) -> bool:
    """Whether the innermost Python frame of an exception is argand's."""
    return innermost_file(error).startswith(CAPTURE_FOLDER)


class Access:
    """Questions about objects."""

    def __init__(self, state: CaptureState) -> None:
        self.state = state
        self.types = TypeFacts(SYMBOLIC)
        self.ragged = False
        self.renew_facts()
        self.outer: dict[int, Any] = state.outer
        self.global_values: dict[tuple[int, str], object] = {}
        self.builtin_names: set[str] = set()
        self.module_values: dict[tuple[int, str], object] = {}
        self.attr_values: dict[int, dict[str, object]] = {}
        self.class_values: dict[tuple[int, str], tuple[object, object]] = {}
        self.outer_cells: dict[int, tuple[object, Source]] = {}
        self.local_cells: dict[int, object] = {}
        self.cell_values: dict[int, object] = {}
        self.local_functions: dict[int, object] = {}
        self.local_classes: dict[int, type] = {}
        self.tainted = False
        self.unregistered: Unregistered | None = None
        self.dynamic = False
        self.patience = Patience()
        self.number = -1
        self.handled_outside: BaseException | None = None  # by whoever called the captured code
        self.frames: list[Frame] = []
        self.unseen: list[object] = []
        """Iterators of comprehensions whose containers were added to without being looked at."""
        self.born: dict[int, tuple[object, int]] = {}
        """id -> (object, number of the root instruction that made it), for objects that may be impossible to rebuild:
        generators, classes, and exceptions (where they were raised)."""
        self.odd_keys: dict[int, object] = {}
        """Dicts and sets, by id, that have keys with Python-level `__hash__` or `__eq__`."""
        self.lru_caches: dict[int, object] = {}
        self._noted_classes: set[int] = set()
        self.inlined: dict[int, types.FunctionType] = {}
        """Functions whose code, or whose defaults, the answer depends on."""

    def look_into_sizes(self) -> None:
        """From now on there may be sizes in a `torch.Size` that native code must not have."""
        self.ragged = True
        self.renew_facts()

    def renew_facts(self) -> None:
        """Build (anew, when a class was changed) what is known of types."""
        facts = self.types
        for cls in (*SYMBOLIC, SymbolicSize, torch.Tensor, torch.nn.Parameter, torch.Tag):
            facts.python[id(cls)] = frozenset()
        facts.native.add(id(torch.Tensor))
        self.fast: set[type] = {*ATOMS, *_TORCH_VALUES, SymbolicSize, torch.Tensor, torch.nn.Parameter}
        self.fast.update(classify.distributed_values())
        if self.ragged:
            self.fast.discard(torch.Size)
        self.settled = frozenset(self.fast - BOUND_METHODS)
        """Types whose objects native code may always have: values, and the stand-ins of tensors."""

    # ---- tensors ---------------------------------------------------------------------------------------------------

    def is_tensor(self, obj: object) -> bool:
        """Whether an object is a tensor (in a capture: a stand-in)."""
        return is_a(obj, torch.Tensor)

    def tensor_attr(self, obj: object, name: str) -> object:
        """Attribute of a tensor: the trace mode answers."""
        if name == "__dict__":
            return tensor_attributes.namespace(self.state, obj)
        try:
            return getattr(obj, name)
        except AttributeError:
            return tensor_attributes.read(self.state, obj, name)
        except Exception as e:
            error = e
        raise self.observe(error)

    def tensor_setattr(self, obj: object, name: str, value: object) -> None:
        """Attribute of a tensor set: the trace mode sees properties, Python attributes are kept on the stand-in."""
        tensor_attributes.refuse_write(self.state, obj, name)
        self.unread(setattr, obj, name, value)

    def observe(self, exc: BaseException) -> ObservedException:
        raise NotImplementedError

    def native(self, fn: Function, /, *args: object, **kwargs: object) -> object:
        raise NotImplementedError

    def unread(self, fn: Function, /, *args: object, **kwargs: object) -> Any:
        raise NotImplementedError

    def reading(self, what: str, fn: Function, /, *args: object, **kwargs: object) -> object:
        """As `native`, for code that only compares, hashes or formats its arguments (`native_reads.READS`)."""
        if self.outer:
            native_reads.check(self, fn, (*args, *kwargs.values()), what)
        return self.unread(fn, *args, **kwargs)

    # ---- outer objects ---------------------------------------------------------------------------------------------

    def is_outer(self, obj: object) -> bool:
        """Whether an object existed before the frame."""
        return id(obj) in self.outer

    def source(self, obj: object) -> Source:
        """Where an outer object was found."""
        return self.state.source_of(obj) or ConstSource(obj)

    def shadow(self, obj: object) -> object:
        """What stands for a container (itself if it is local)."""
        if id(obj) not in self.outer:
            return obj
        if is_a(obj, BUFFERS):
            raise unseen_object(obj)
        return self.state.shadow(obj)

    def plain(self, obj: Any) -> object:
        """The object as native code may have it: outer containers in it, at any depth, replaced by their shadows."""
        cls = type(obj)
        if cls in self.fast or cls in SYMBOLIC:
            return obj
        if cls is TaintedText:
            raise formatted_tensor(obj)
        if id(obj) in self.outer:
            if is_numpy_array(cls):
                raise numpy_functions.outer_array(obj)
            if is_a(obj, BUFFERS) or self.is_native_iterator(obj):
                raise unseen_object(obj)
        return self.state.deep_resolve(obj)

    def origin(self, obj: object) -> object:
        """The object that a shadow stands for; any other as it is."""
        entry = self.state.shadow_origin.get(id(obj))
        return obj if entry is None else entry.original

    def same_origin(self, a: object, b: object) -> bool:
        """Whether two objects here are one to the program."""
        if type(a) is type(b) and type(a) not in ATOMS:
            identity.compared(self.state, a)
            identity.compared(self.state, b)
        if self.state.graph.maybe_same:
            contiguity.compared(self.state.graph, a, b)
        return self.origin(a) is self.origin(b)

    def pin(self, obj: object) -> None:
        """The program depends on which object this is: on its hash, id or default text."""
        if id(obj) in self.outer:
            identity.pin(self.state, obj)

    def state_has_origin(self, *objs: object) -> bool:
        """Whether one of the objects is a shadow."""
        return any(id(obj) in self.state.shadow_origin for obj in objs)

    def read_overlay(self, obj: object, name: str) -> object:
        """A pending write: the value, DELETED, or NULL if there is none."""
        value = self.state.read_overlay(obj, name)
        return NULL if value is UNSET else value

    def load_argument(self, lazy: LazyLocal) -> object:
        """Read an argument of the root frame for the first time."""
        return self.state.load_source(LocalSource(lazy.name, lazy.index), lazy.value)

    def suspended(self) -> AbstractContextManager[object]:
        """Context in which torch functions are not recorded (imports of modules)."""
        return torch._C.DisableTorchFunction()

    def container_length(self, obj: object) -> int:
        """`len` of a container, guarded if it is outer and untouched."""
        added = self.state.additions.get(id(obj)) if type(obj) is list else None
        touched = added is None and (self.state.is_touched(obj) or self.state.has_pending_names(obj))
        if id(obj) in self.outer and not touched:
            self.state.refuse_written_names(obj)
            length = raw_length(obj)
            self.state.guard(self.outer[id(obj)], "len", length)
            return length if added is None or added.kind == "places" else length + len(added.values)
        return int(self.unread(len, self.shadow(obj)))

    def outer_has_key(self, container: Any, key: object) -> bool:
        """`key in container` for an outer dict or set."""
        kind: Any = dict if is_a(container, dict) else set if is_a(container, set) else frozenset
        if self._added(container, key) is not UNSET:
            return True
        if id(container) in self.state.shadows or not self._plain_key(key):
            self.pin(key)
            native_reads.check(self, kind.__contains__, (key,), "hash")
            return bool(self.unread(kind.__contains__, self.shadow(container), key))
        self.state.refuse_written_names(container)
        pending = self.state.pending_item(container, key)
        if pending is not UNSET:
            return pending is not DELETED
        present = bool(self.unread(kind.__contains__, container, key))
        source = self.outer[id(container)]
        self.state.guard(source, "has_key" if present else "not_has_key", key)
        return present

    def _plain_key(self, key: object) -> bool:
        """Whether a key means the same outside: a stand-in is only a key of shadows."""
        return (type(key) in self.fast and not self.is_tensor(key)) or is_a(key, type)

    def _added(self, container: object, key: object) -> object:
        """What captured code put into a dict, set or list that has no shadow, under a key; UNSET if nothing."""
        added = self.state.additions.get(id(container))
        if added is None:
            return UNSET
        if added.kind == "places" and type(key) is int:
            return additions.replacement(added, key)
        if added.kind in ("end", "places") or not additions.is_plain_key(key):
            self.state.shadow(container)
            return UNSET
        return added.values.get(key, UNSET)

    def outer_item(self, container: object, key: object) -> object:
        """An item of an outer container: by its own source while the container is untouched."""
        if is_a(container, collections.deque) and self.types.lookup(type(key), "__index__") is NULL:
            return self.unread(operator.getitem, _AN_EMPTY_DEQUE, key)  # refused, in other words than by the method
        if (value := self._added(container, key)) is not UNSET:
            return value
        if id(container) in self.state.shadows:
            return self.unread(_own_getitem, self.state.shadow(container), key)
        if is_a(container, dict):
            if self._plain_key(key):
                self.state.refuse_written_names(container)
                pending = self.state.pending_item(container, key)
                if pending is UNSET:
                    return self.state.item(container, key)
                if pending is not DELETED:
                    return pending
        elif is_a(container, list | tuple) and type(key) is int:
            size = self.container_length(container)
            if -size <= key < size:
                return self.state.item(container, key % size)
        return self.unread(_own_getitem, self.state.shadow(container), key)

    # ---- may native code have it? ----------------------------------------------------------------------------------

    def benign(self, obj: object) -> bool:
        """Whether native code that compares, hashes, orders or formats the object runs no Python of the program."""
        fast = self.fast
        if type(obj) in fast:
            return True
        todo = [obj]
        seen: set[int] = set()
        while todo:
            obj = todo.pop()
            cls = type(obj)
            if cls in fast or id(obj) in seen:
                continue
            seen.add(id(obj))
            dunders = self.types.python_dunders(cls)
            if dunders and (not issubclass(cls, type) or dunders & _COMPARISONS):
                return False
            if self.dynamic and module_of(cls) == "numpy":
                return False  # its C code would take a symbolic number for any other object
            if is_a(obj, CONTAINERS):
                todo.extend(held_items(obj))
            elif id(obj) in self.outer or cls is types.MethodType:
                identity.compared(self.state, obj)
        return True

    def is_constant(self, obj: object, depth: int = 0, constants: set[int] | None = None) -> bool:
        """An atom, or a container of atoms.

        Arguments:
            constants: ids of containers that were found to be, so that none is looked through twice.
        """
        cls = type(obj)
        if cls in self.fast:
            return not self.is_tensor(obj) and cls is not SymbolicSize
        if is_a(obj, type | types.FunctionType | types.ModuleType) or module_of(cls) == "typing":
            return True
        if cls not in (list, tuple, dict, set, frozenset) or depth > 20:
            return False
        if id(obj) in self.outer:
            obj = self.state.shadow(obj)
        constants = set() if constants is None else constants
        if id(obj) not in constants:
            if not all(self.is_constant(item, depth + 1, constants) for item in held_items(obj)):
                return False
            constants.add(id(obj))
        return True

    def textual(self, obj: object) -> object:
        """The object for native formatting: parts with Python-level text methods replaced by proxies."""
        return textual(self, self.plain(obj), {})

    def textual_field(self, obj: object) -> object:
        """The object for native formatting that reads what is in it: a proxy, which has that interpreted."""
        return obj if type(obj) in PLAIN_VALUES else standing_for(self, obj, as_field=True)

    def textual_items(self, obj: object) -> object:
        """The same for the items of a container, whose own text is native code's."""
        return textual_items(self, self.plain(obj), {})

    def check_known(self, obj: object) -> None:
        """End the graph for an outer object of a native class that argand knows nothing of (iterators, files...)."""
        cls = type(obj)
        if cls in self.fast or id(obj) not in self.outer or is_a(obj, CONTAINERS):
            return
        if native_reads.kind(cls) == native_reads.VALUE:
            return
        if is_native(cls) or module_of(cls) in _ITERATOR_MODULES or is_a(obj, BUFFERS):
            raise unseen_object(obj)
        if self.is_native_iterator(obj) or native_reads.kind(cls) == native_reads.OPAQUE:
            raise unseen_object(obj)

    def is_native_iterator(self, obj: object) -> bool:
        """Whether `next(obj)` is native code, which changes the object unseen."""
        cls = type(obj)
        return self.types.lookup(cls, "__next__") is not NULL and not self.types.python_level(cls, "__next__")

    def known_meta(self, meta: type) -> bool:
        """Whether instance checks of a metaclass run no code of the program: abc, enum, typing, torch's own."""
        hook = self.types.lookup(meta, "__instancecheck__")
        module = str(getattr(hook, "__module__", ""))
        return module.partition(".")[0] in ("abc", "enum", "typing", "torch", "_py_abc", "typing_extensions")

    # ---- classes and functions -------------------------------------------------------------------------------------

    def note_class(self, cls: type) -> None:
        """The program relies on attributes of a class: guard that it is not changed."""
        if id(cls) in self._noted_classes:
            return
        if cls.__mro__ is None:
            raise graph_break(kind="class under construction", skip_frame=True)
        self._noted_classes.add(id(cls))
        self.types.rely_on(cls)
        if is_heap(cls) and id(cls) not in self.local_classes:
            guards = self.state.guards
            guards.add(ConstSource(cls), "type_version", cls, self.types, shown=False)
            if type(cls) not in _PLAIN_METACLASSES and is_heap(type(cls)):
                guards.add(ConstSource(cls), "type", type(cls), shown=False)

    def guard_classes(self) -> None:
        """Guard every class that was asked for anything, also for what it lacks; called at the end of the capture.

        What a class made by the program itself inherits from outside is guarded there.
        """
        for cls in list(self.types.keep.values()):
            for klass in (cls.__mro__ or ()) if id(cls) in self.local_classes else (cls,):
                if klass.__mro__ is not None:
                    self.note_class(klass)

    def guard_functions(self) -> None:
        """Guard the code and the defaults of every function that was looked into; called at the end of the capture.

        Where each call may bring another function of the same code, that is guarded where it comes from.
        """
        functions = tuple(
            fn
            for key, fn in self.inlined.items()
            if key not in self.local_functions
            and fn.__code__.co_filename not in native_handlers.HELPER_FILES
            and not guarded_by_code(self.state.source_of(fn), fn)
        )
        if functions:
            self.state.guards.add(None, "functions", functions, shown=False)

    def note_local_class(self, cls: type) -> None:
        """A class made by the program."""
        self.local_classes[id(cls)] = cls
        self.born[id(cls)] = (cls, self.number)
        self.state.note_local(cls)

    def note_local_function(self, fn: object) -> None:
        """A function made by the program."""
        self.local_functions[id(fn)] = fn
        self.state.note_local(fn)

    def load_function(self, fn: object) -> None:
        """Make a function found in a class known as an outer object: its attributes are read and written outside."""
        if not (id(fn) in self.outer or id(fn) in self.local_functions):
            self.state.load_source(ConstSource(fn), fn)

    def load_member(self, member: object) -> object:
        """A member of an enum: what it is called and its value are guarded once, whatever native code reads of it."""
        if not (id(member) in self.outer or id(type(member)) in self.local_classes):
            self.state.load_source(ConstSource(member), member)
        return member

    def load_class(self, cls: type) -> None:
        """Make a class known as an outer object, so that writes to it can be replayed."""
        if id(cls) not in self.outer:
            self.state.load_source(ConstSource(cls), cls)

    # ---- texts of tensors ----------------------------------------------------------------------------------------

    def taint(self, like: object = "", numbers: Sequence[SymbolicNumber] = ()) -> TaintedText:
        """The text of a tensor, or another value that only the running program knows; or one of numbers that vary."""
        self.tainted = True
        return TaintedText(self.number, like, numbers)

    def refuse_tainted(self, values: Iterable[object]) -> None:
        """End the graph if native code would get such a text, at any depth. Asked only once there is one."""
        todo = list(values)
        seen: set[int] = set()
        while todo:
            value = todo.pop()
            if type(value) is TaintedText:
                raise formatted_tensor(value)
            if is_a(value, CONTAINERS) and id(value) not in seen:
                seen.add(id(value))
                todo.extend(held_items(value))

    # ---- torch -----------------------------------------------------------------------------------------------------

    def wants_torch_call(self, fn: Function, module: str) -> bool:
        """Whether the capture state must be asked before a Python function is inlined."""
        return bool(torch_calls.wants(fn, module))

    def is_torch_class(self, cls: type) -> bool:
        """Whether a class is one of torch's that the capture state may construct."""
        module = module_of(cls)
        return (
            module == "torch"
            or module.startswith(("torch.", "numpy"))
            or torch_calls._hashable_handler(cls) is not None
        )

    def torch_call(self, fn: Function, args: list[object], kwargs: dict[str, object]) -> object:
        """A call that may be torch's: its result, or NotImplemented."""
        try:
            return self.state.torch_call(fn, tuple(args), kwargs)
        except Exception as e:
            error = e
        raise self.observe_torch(error)

    def observe_torch(self, error: Exception) -> ObservedException:
        """An exception of torch's is the program's; one of capture's own code is a bug, and must not pass for that."""
        if is_a(error, AttributeError | KeyError | NameError | AssertionError) and raised_here(error):
            raise InternalFailure(error) from error
        return self.observe(error)

    def special_call(self, fn: Function, args: list[object], kwargs: dict[str, object]) -> object:
        """A call of an object that may be torch's."""
        try:
            return torch_calls.special_call(self.state, fn, tuple(args), kwargs)
        except Exception as e:
            error = e
        raise self.observe_torch(error)

    def say(self, fn: object, args: list[object], kwargs: dict[str, object]) -> None:
        """Have a call that says something (in a log, as a warning) happen at each run, before what is held back is
        written.

        Raises:
            GraphBreak: what it says is not the same at each run, or may change until then.
        """
        if not all(self._stays(value) for value in (*args[1:], *kwargs.values())):
            raise graph_break(
                kind="log message",
                explanation="What is said holds a tensor, a number that varies, or an object that can change.",
            )
        self.state.said.append((fn, [self.plain(arg) for arg in args], dict(kwargs), self.places()))

    def places(self) -> tuple[CodePlace, ...]:
        """Where the program stands, outermost first: what is said there names these lines."""
        frames = [frame for frame in self.frames if not frame.quiet]
        return tuple(CodePlace(frame.code, frame.lineno, frame.globals) for frame in frames)

    def _stays(self, value: object) -> bool:
        if is_a(value, tuple | frozenset):
            return self.is_constant(value) and all(map(self._stays, held_items(value)))
        return self.is_constant(value) and not is_a(value, list | dict | set)

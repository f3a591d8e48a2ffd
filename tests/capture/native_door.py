"""Finds code of capture that has C code read an object of the program past `Interpreter.native` and its siblings.

Looked at are the modules that know the interpreter. In a function of these, a *program value* is a parameter whose type
says nothing (`Any`, `object`, `Function`), what is taken out of such a parameter, and what it is assigned to. C code reads the state
of one where it is given to a builtin or to a function of a module of the standard library, called, compared, formatted,
or asked for a method. `interp.native(len, value)` is none of these: `len` is not called here.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from pathlib import Path
from typing import Final

CAPTURE: Final = Path(__file__).resolve().parents[2] / "src" / "argand" / "capture"
ALSO: Final = frozenset({"access.py", "interpreter.py", "iterator_positions.py", "shadows.py", "state.py", "text.py"})
READ_NOTHING: Final = frozenset({"type", "id", "super"})
BUILTINS: Final = frozenset(
    name
    for name, value in vars(builtins).items()
    if callable(value)
    and name not in READ_NOTHING
    and not (isinstance(value, type) and issubclass(value, BaseException))
)
OWN_LISTS: Final = frozenset(
    {"Args", "Kwargs"}
    | {
        kind.format(item)
        for item in ("Any", "object")
        for kind in ("list[{}]", "dict[str, {}]", "tuple[{}, ...]", "Sequence[{}]", "Iterable[{}]")
    }
)
"""Types of parameters that are lists of capture's own: only what they hold is the program's."""
NAMED: Final = frozenset({"args", "kwargs"})
"""So are parameters of these names."""
CAPTURES: Final = frozenset({"interp", "state", "builder", "self"})
"""What parameters of these names are is capture's, whatever their type."""
ORDERED: Final = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn)

ALLOWED: Final[dict[str, list[str]]] = {
    "the door itself": [
        "interpreter.py untouched: fn(*args, **kwargs)",
    ],
    "the attribute read that is asked for, after the rules that guard it": [
        "access.py tensor_attr: getattr(obj, name)",
        "attribute_writes.py _through_descriptor: getattr(meta, of_property)",
        "attributes.py _read_native: getattr(obj, name)",
        "attributes.py _load_module_attr: getattr(module, name)",
        "attributes.py _read_function: getattr(func, name)",
        "attributes.py _read_method: getattr(method, name)",
        "descriptors.py _guarded_attribute: meta.__get__(obj, cls)",
        "abstract_classes.py _protocol: hasattr(value, name)",
        "abstract_classes.py _protocol: typing._get_protocol_attrs(base)",
    ],
    "a handler, which is capture's own": [
        "calls.py by_handler: handler(*given)",
    ],
    "its exact type was asked before": [
        "attributes.py _read_instance: getattr(obj, name, None)",
        "access.py outer_item: -size <= key < size",
        "text_proxy.py textual_items: obj.items()",
        "classes.py set_function_attribute: zip(value[::2], value[1::2])",
        "identity.py _is_single: -5 <= value <= 256",
        "identity.py _is_single: len(value)",
        "identity.py _is_single: ord(value)",
        "identity.py _is_single: value == ''",
        "identity.py values_compared: a == b",
        "iteration.py get_iter: iter(value)",
        "names.py load_called: name.partition('.')",
        "names.py lookup_in: mapping.get(name, NULL)",
        "lru_caches.py _is_globals: '__builtins__' in obj",
        "lru_caches.py _is_globals: '__name__' in obj",
        "lru_caches.py _items: value.items()",
        "lru_caches.py _mapped: value.items()",
        "logging_functions.py _get_logger: name in ('', logging.root.name)",
        "object_methods.py _object_reduce: args[0] < 2",
        "opcodes_basic.py _of_code: value != value",
        "shadows.py _guardable: key == key",
        "shadows.py make: i in replaced",
        "shadows.py _same: repr(other)",
        "shadows.py _same: repr(one)",
        "state.py _load_value: value == value",
        "symbolic_ops.py plain: tuple(value)",
        "symbolic_ops.py plain: value.number()",
        "symbolic_ops.py run: map(is_number, items)",
        "symbolic_ops.py run: len(items)",
        "symbolic_ops.py run: list(args[0])",
        "text.py to_format: spec == ''",
        "torch_contexts.py _exit_device: str(owner)",
        "torch_contexts.py _exit_device: state.graph.entered[count - 1].mode != owner",
    ],
    "a symbolic number of capture's own": [
        "identity.py id_of: obj.number()",
        "keys.py check_hash: key.number()",
        "lru_caches.py _mapped: number(value)",
        "operators.py getitem: key.number()",
        "symbolic_ops.py identical: x.number()",
        "symbolic_ops.py read: number.number()",
        "symbolic_ops.py plain_arguments: value.number()",
    ],
    "a stand-in, or the tensor behind it, with torch functions off": [
        "one_sided_branches.py hold: value.numel()",
        "tensor_attributes.py of_legacy_type: isinstance(info.real, legacy)",
    ],
    "a class, whose bases C code keeps; the class that is asked has no `__subclasscheck__` of its own": [
        "calls.py _refuse_tainted: issubclass(fn, BaseException)",
        "generators.py _thrown: issubclass(kind, BaseException)",
        "raising.py is_exception_class: issubclass(obj, BaseException)",
        "raising.py match_group: issubclass(item, BaseExceptionGroup)",
        "subclass_calls.py _new: tuple(rest)",
        "subclass_calls.py _new: issubclass(cls, _Tensor)",
        "subclass_calls.py _new: len(rest)",
        "subclass_calls.py _as_subclass: issubclass(wanted, _Tensor)",
    ],
    "stored, not looked at": [
        "lru_caches.py _weak: weakref.ref(value)",
        "object_methods.py _signature: types.MethodType(called, function)",
        "classes.py make_function: types.FunctionType(code, frame.globals, code.co_name, None, closure)",
        "classes.py build_class: tuple(given)",
        "classes.py intrinsic_1: typing.TypeVarTuple(value)",
        "classes.py intrinsic_1: typing.ParamSpec(value, infer_variance=True)",
        "classes.py intrinsic_1: typing.TypeVar(value, infer_variance=True)",
        "descriptors.py bind: types.MethodType(meta, obj)",
    ],
    "an object of a C class that says what it holds, which is not run": [
        "descriptors.py _bind_native: meta.__reduce__()",
        "native_reads.py _check_outer: obj()",
        "shadows.py _refers_weakly: key()",
        "names.py load_called: vars(module)",
        "library_functions.py parts_of: fn.__reduce__()",
        "builtin_methods.py mapping_behind: gc.get_referents(proxy)",
        "weak_references.py dereference: ref()",
        "native_reads.py _check_outer: obj()",
        "iterator_positions.py push: obj.__length_hint__()",
        "iterator_positions.py push: hasattr(obj, '__length_hint__')",
        "iterator_positions.py push: obj.__reduce__()",
        "iterator_positions.py push: gc.get_referents(obj)",
        "shadows.py _new_tuple: like.__reduce__()",
    ],
    "an iterator of a C class over what is guarded (`check_known`)": [
        "iteration.py next_value: next(iterator)",
        "iteration.py iter_next: next(iterator, STOP)",
    ],
    "keys whose hash and equality were asked under guards just before (`check_hash`)": [
        "iteration.py dict_merge: key in target",
        "matching.py match_keys: key in seen",
    ],
    "constants, numbers, sets or lists of capture's own": [
        "text_proxy.py textual_items: copies.get(key, obj)",
        "text_proxy.py textual_items: key in copies",
        "access.py benign: todo.extend(held_items(obj))",
        "access.py benign: todo.pop()",
        "trees.py _tree: parts.extend(native_reads.held(part) or ())",
        "trees.py _tree: parts.pop()",
        "iterator_positions.py copy_keeps_order: zip(items, copy)",
        "iterator_positions.py copy_keeps_order: map(_hashed_by_value, items)",
        "iterator_positions.py copy_keeps_order: set(items)",
        "shadows.py deep_resolve: id(obj) in seen",
    ],
    "a deque, whose length is guarded; one with methods of its own is refused before": [
        "shadows.py make: len(obj)",
    ],
    "a function of capture's own, or one that was looked up in a table by identity": [
        "iteration_functions.py hashed_items: take(items)",
        "library_functions.py _drawn: fn in (random.random, random.uniform)",
        "subclass_calls.py _make_switch: fn(*args, **kwargs)",
        "torch_contexts.py _changing: change()",
    ],
    "interpreted, not run: code of a helper": [
        "iteration_functions.py _less: a < b",
    ],
    "names of keyword arguments, which a call has checked": [
        "rows.py handler: name not in named",
    ],
    "only how a guard is called in texts": [
        "state.py _guard_identity: callable(value)",
    ],
}
"""Why -> places that were looked at: nothing that the program owns is read unseen there."""


def modules() -> list[Path]:
    """Files that are looked at: they import the interpreter, or belong to it."""
    return [path for path in sorted(CAPTURE.rglob("*.py")) if path.name in ALSO or _knows(path.read_text())]


def _knows(text: str) -> bool:
    if "Interpreter" not in text and "Access" not in text:
        return False
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    return any(alias.name in ("Interpreter", "Access") for node in imports for alias in node.names)


def reads(source: str) -> Iterator[tuple[str, str, int]]:
    """(function, expression, line) of each place of a module where C code reads a program value."""
    tree = ast.parse(source)
    libraries = {
        alias.asname or alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names
    } - {"torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            values = _Values(node)
            for each in _own(node):
                if values.is_read(each, libraries):
                    yield node.name, ast.unparse(each), getattr(each, "lineno", node.lineno)


def _own(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Nodes of a function without those of functions inside of it."""
    pending: list[ast.AST] = list(function.body)
    while pending:
        node = pending.pop()
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node
            pending += ast.iter_child_nodes(node)


class _Values:
    """Names of a function that hold program values."""

    def __init__(self, function: ast.FunctionDef) -> None:
        given = function.args
        found = [*given.posonlyargs, *given.args, *given.kwonlyargs]
        found += [each for each in (given.vararg, given.kwarg) if each is not None]
        kinds = {each.arg: ast.unparse(each.annotation) if each.annotation else "" for each in found}
        self.names = {name for name, kind in kinds.items() if any(w in kind for w in ("Any", "Args", "object"))}
        self.names |= {name for name, kind in kinds.items() if kind in ("Function", "Kwargs")}
        self.names -= CAPTURES
        self.lists = {name for name, kind in kinds.items() if kind in OWN_LISTS or name in NAMED}
        self.lists |= {each.arg for each in (given.vararg, given.kwarg) if each is not None}
        before = -1
        while before != len(self.names):
            before = len(self.names)
            for node in _own(function):
                self._follow(node)

    def _follow(self, node: ast.AST) -> None:
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign) and self.holds(node.value):
            targets = node.targets
        elif isinstance(node, ast.For | ast.comprehension) and self.holds(node.iter):
            targets = [node.target]
        elif isinstance(node, ast.NamedExpr) and self.holds(node.value):
            targets = [node.target]
        for target in targets:
            stored = [each for each in ast.walk(target) if isinstance(each, ast.Name)]
            self.names |= {each.id for each in stored if isinstance(each.ctx, ast.Store)}

    def holds(self, node: ast.expr) -> bool:
        """Whether an expression is a program value, or a container of capture's that holds some."""
        if isinstance(node, ast.Name):
            return node.id in self.names
        if isinstance(node, ast.Subscript | ast.Starred | ast.NamedExpr):
            return self.holds(node.value)
        if isinstance(node, ast.Tuple | ast.List):
            return any(self.holds(each) for each in node.elts)
        if isinstance(node, ast.IfExp):
            return self.holds(node.body) or self.holds(node.orelse)
        if isinstance(node, ast.BoolOp):
            return any(self.holds(each) for each in node.values)
        return (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id in self.lists
            and node.func.attr in ("get", "pop", "items", "values", "popleft")
        )

    def _is_value(self, node: ast.expr) -> bool:
        """Whether an expression is one program value, not a list of capture's."""
        if isinstance(node, ast.Name) and node.id in self.lists or isinstance(node, ast.Starred):
            return False
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
            return self._is_value(node.value)
        if isinstance(node, ast.BoolOp):
            return any(self._is_value(each) for each in node.values)
        return self.holds(node)

    def is_read(self, node: ast.AST, libraries: set[str]) -> bool:
        """Whether C code reads a program value here."""
        if isinstance(node, ast.FormattedValue):
            return self._is_value(node.value)
        if isinstance(node, ast.Compare):
            ordered = any(isinstance(op, ORDERED) for op in node.ops)
            return ordered and any(self._is_value(each) for each in (node.left, *node.comparators))
        if not isinstance(node, ast.Call):
            return False
        given = any(self._is_value(each) for each in (*node.args, *(k.value for k in node.keywords)))
        called = node.func
        if isinstance(called, ast.Name):
            if called.id in READ_NOTHING:
                return False
            return (called.id in BUILTINS and given) or self._is_value(called)
        if isinstance(called, ast.Attribute):
            library = isinstance(called.value, ast.Name) and called.value.id in libraries
            return (library and given) or self._is_value(called.value)
        return False

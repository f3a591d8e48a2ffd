"""How names are found: globals, builtins, cells, class namespaces, imports. What is found outside is guarded here."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from types import CellType, ModuleType
from typing import Any

from argand.capture.facts.exceptions import ObservedException
from argand.capture.facts.frames import NULL, STOP, Frame
from argand.capture.facts.interfaces import Interpreter
from argand.capture.facts.kinds import is_a
from argand.capture.facts.overlays import DELETED
from argand.capture.facts.sources import (
    BuiltinSource,
    CellContentsSource,
    ClosureCellSource,
    ConstSource,
    DictItemSource,
    FuncCellSource,
    GlobalSource,
    ImportedSource,
    Source,
)
from argand.capture.objects import operators
from argand.errors import graph_break

# ---- globals and builtins ------------------------------------------------------------------------------------------


def load_global(interp: Interpreter, frame: Frame, name: str) -> object:
    """The value of a global or builtin name as seen by a frame."""
    key = (id(frame.globals), name)
    value = interp.global_values.get(key, STOP)
    if value is STOP:
        value = interp.global_values[key] = _outer_global(interp, frame, name)
    elif interp.state.loads is not None and value is not NULL:
        base = globals_source(interp, frame.globals)
        interp.state.loads.append((GlobalSource(name) if base is None else DictItemSource(base, name), value))
    if value is NULL:
        return load_builtin(interp, frame, name)
    return value


def globals_source(interp: Interpreter, globals_: dict[str, object]) -> Source | None:
    """Source of a globals dict; None for the root frame's own, whose names have sources themselves."""
    return None if globals_ is interp.state.globals else ConstSource(globals_)


def _outer_global(interp: Interpreter, frame: Frame, name: str) -> object:
    globals_ = frame.globals
    base = globals_source(interp, globals_)
    if name not in globals_:
        if not frame.quiet:
            guards = interp.state.guards
            guards.add(ConstSource(globals_), "not_has_key", name, position=interp.state.position(), shown=False)
        return NULL
    source = GlobalSource(name) if base is None else DictItemSource(base, name)
    return interp.state.load_source(source, globals_[name])


def load_builtin(interp: Interpreter, frame: Frame, name: str) -> object:
    builtins = frame.builtins
    try:
        value = builtins[name]
    except KeyError:
        raise interp.throw(NameError(f"name '{name}' is not defined", name=name)) from None
    if name in interp.builtin_names:
        return value
    interp.builtin_names.add(name)
    if builtins is interp.state.builtins:
        return interp.state.load_source(BuiltinSource(name), value)
    return interp.state.load_source(DictItemSource(ConstSource(builtins), name), value)


def store_global(interp: Interpreter, globals_: dict[str, object], name: str, value: object) -> None:
    """Write (or, with NULL, delete) a global: an effect to replay."""
    interp.global_values[id(globals_), name] = value
    interp.state.write_global(globals_, name, DELETED if value is NULL else value)


def delete_global(interp: Interpreter, frame: Frame, name: str) -> None:
    key = (id(frame.globals), name)
    known = interp.global_values.get(key)
    if known is NULL or (known is None and key not in interp.global_values and name not in frame.globals):
        raise interp.throw(NameError(f"name '{name}' is not defined", name=name))
    store_global(interp, frame.globals, name, NULL)


# ---- class namespaces ----------------------------------------------------------------------------------------------


def lookup_in(interp: Interpreter, mapping: object, name: str) -> object:
    """`mapping[name]`, or NULL where that raises KeyError."""
    if mapping is None:
        return NULL
    if type(mapping) is dict:
        return mapping.get(name, NULL)
    try:
        return interp.getitem(mapping, name)
    except ObservedException as observed:
        if is_a(observed.value, KeyError):
            return NULL
        raise


def delete_name(interp: Interpreter, frame: Frame, name: str) -> None:
    try:
        operators.delitem(interp, frame.locals, name)
        return
    except ObservedException as observed:
        if not is_a(observed.value, KeyError):
            raise
    raise interp.throw(NameError(f"name '{name}' is not defined", name=name))


# ---- cells ---------------------------------------------------------------------------------------------------------


def bind_free_variables(interp: Interpreter, frame: Frame, count: int) -> None:
    """COPY_FREE_VARS: put the closure's cells into the last slots."""
    func = frame.func
    cells = (func.__closure__ or ()) if func is not None else frame.closure
    first = frame.program.nslots - count
    frame.fast[first:] = cells
    if func is None and frame is not interp.root:
        return
    if func is not None and id(func) in interp.local_functions:
        return
    for i, cell in enumerate(cells):
        if id(cell) in interp.outer_cells or id(cell) in interp.local_cells:
            continue
        source: Source
        if func is None:
            source = ClosureCellSource(frame.program.names[first + i], i)
        else:
            source = FuncCellSource(interp.state.source_of(func) or ConstSource(func), i)
        interp.outer_cells[id(cell)] = (cell, source)
        interp.state.load_source(source, cell)


def closed_over(interp: Interpreter, fn: Any, name: str) -> object:
    """Contents of a free variable of a function, NULL if it has none of this name."""
    code = fn.__code__
    if name not in code.co_freevars:
        return NULL
    index = code.co_freevars.index(name)
    cell = fn.__closure__[index]
    if id(fn) not in interp.local_functions:
        if id(cell) not in interp.outer_cells and id(cell) not in interp.local_cells:
            source = FuncCellSource(interp.state.source_of(fn) or ConstSource(fn), index)
            interp.outer_cells[id(cell)] = (cell, source)
            interp.state.load_source(source, cell)
    return read_cell(interp, cell)


def new_cell(interp: Interpreter, value: object) -> CellType:
    """A cell that belongs to the traced program."""
    cell = CellType() if value is NULL else CellType(value)
    interp.local_cells[id(cell)] = cell
    return cell


def read_cell(interp: Interpreter, cell: CellType) -> object:
    """Contents of a cell, NULL if empty."""
    if interp.outer_cells and id(cell) in interp.outer_cells:
        value = interp.cell_values.get(id(cell), STOP)
        if value is STOP:
            value = interp.cell_values[id(cell)] = _load_outer_cell(interp, cell)
        elif interp.state.loads is not None:
            interp.state.loads.append((CellContentsSource(interp.outer_cells[id(cell)][1]), value))
        return value
    try:
        return cell.cell_contents
    except ValueError:
        return NULL


def _load_outer_cell(interp: Interpreter, cell: CellType) -> object:
    try:
        contents = cell.cell_contents
    except ValueError:
        return NULL
    return interp.state.load_source(CellContentsSource(interp.outer_cells[id(cell)][1]), contents)


def write_cell(interp: Interpreter, cell: CellType, value: Any) -> None:
    """Set a cell's contents (NULL empties it)."""
    if interp.outer_cells and id(cell) in interp.outer_cells:
        interp.cell_values[id(cell)] = value
        interp.state.write_cell(cell, DELETED if value is NULL else value)
    elif value is NULL:
        del cell.cell_contents
    else:
        cell.cell_contents = value


def unbound_cell(interp: Interpreter, frame: Frame, slot: int) -> BaseException:
    name = frame.program.names[slot]
    if name in frame.code.co_freevars:
        return interp.throw(
            NameError(
                f"cannot access free variable '{name}' where it is not associated with a value in enclosing scope",
                name=name,
            )
        )
    return interp.throw(
        UnboundLocalError(f"cannot access local variable '{name}' where it is not associated with a value")
    )


# ---- imports -------------------------------------------------------------------------------------------------------


def import_module(interp: Interpreter, frame: Frame, name: str, fromlist: object, level: int) -> object:
    """`__import__`, with the module loaded for real if need be: a module's top level runs once, so doing it now is what
    the program asked for."""
    importer = frame.builtins.get("__import__")
    if importer is not __import__:
        raise graph_break(kind="import hook")
    full = name
    if level:
        package = frame.globals.get("__package__") or frame.globals.get("__name__", "").rpartition(".")[0]
        try:
            full = importlib.util.resolve_name("." * level + name, package)
        except ImportError:
            full = ""
    if full in sys.modules and not fromlist and "." not in name and level == 0:
        module = sys.modules[full]
    else:
        with interp.suspended():
            module = interp.unread(importer, name, frame.globals, None, fromlist, level)
    return load_module(interp, module, full if fromlist else full.partition(".")[0])


def load_called(interp: Interpreter, module: object, args: Sequence[object]) -> object:
    """What a function that imports gave for `args`, an absolute name first."""
    name = args[0] if args else None
    asked = (name, name.partition(".")[0]) if type(name) is str else ()
    own = vars(module).get("__name__") if is_a(module, ModuleType) else None
    return load_module(interp, module, *asked, own)


def load_module(interp: Interpreter, module: object, *names: object) -> object:
    """What an import gave; as long as `sys.modules` has it under its name, importing it again finds it.

    Arguments:
        names: under which it may be there.
    """
    for name in names:
        if type(name) is str and sys.modules.get(name) is module:
            return interp.state.load_source(ImportedSource(name), module)
    if is_a(module, ModuleType):
        return interp.state.load_source(ConstSource(module), module)
    raise graph_break(kind="import of an object that is no module", context=type(module).__name__)


def _own_text(interp: Interpreter, module: object, name: str) -> str | None:
    text = interp.try_attr(module, name)
    return text if is_a(text, str) else None


def import_from(interp: Interpreter, module: object, name: str) -> object:
    """`from module import name`."""
    try:
        return interp.getattr(module, name)
    except ObservedException as observed:
        if not is_a(observed.value, AttributeError):
            raise
    package, path = _own_text(interp, module, "__name__"), _own_text(interp, module, "__file__")
    submodule = sys.modules.get(f"{package}.{name}")
    if submodule is not None:
        return load_module(interp, submodule, f"{package}.{name}")
    where = f"({path})" if path else "(unknown location)"
    raise interp.throw(
        ImportError(
            f"cannot import name {name!r} from {package or '<unknown module name>'!r} {where}", name=package, path=path
        )
    )

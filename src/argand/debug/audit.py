"""`config.audit_rate`: a sample of the calls of compiled functions is also run eagerly, and compared.

A compiled function is right as long as its guards notice every change that matters. This looks, in production,
whether they do. The eager run comes second, on copies of the arguments, and leaves no trace: buffers, attributes,
globals, cells and random number generators are what the compiled run made them. What differs is reported once for each
function.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import io
import random
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from argand import events
from argand.capture.facts.code.directives import is_compiling
from argand.config import config
from argand.debug import accuracy, gpus
from argand.debug.accuracy import Mismatch
from argand.debug.trial.tensors import clone_strided

_TOO_DEEP = 6


class AuditWarning(UserWarning):
    """A compiled function did something else than eager does."""


def audited(compiled: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """`compiled`, some of whose calls are checked against `original`."""
    auditor = Auditor(compiled, original)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(*args, **kwargs)
        if auditor.picks():
            return auditor.run(args, kwargs)
        return compiled(*args, **kwargs)

    call.__dict__["_torchdynamo_orig_callable"] = original
    call.__dict__["auditor"] = auditor
    return call


class Auditor:
    """Checks the calls of one function.

    Attributes:
        audits: calls that were checked.
        findings: differences, all of them; only the first is reported.
        skipped: why calls cannot be checked, "" when they can.
    """

    def __init__(self, compiled: Callable[..., Any], original: Callable[..., Any]) -> None:
        self.compiled = compiled
        self.original = original
        self.audits = 0
        self.findings: list[str] = []
        self.skipped = ""
        self._random = random.Random()  # the program's own generator is not touched

    def picks(self) -> bool:
        """Whether this call is in the sample."""
        rate = float(config.audit_rate)
        return rate > 0 and not self.skipped and (rate >= 1 or self._random.random() < rate)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the compiled function, then the original on copies; what the compiled one returned or raised."""
        copied_args, copied_kwargs = _Copier().copy((args, kwargs))
        outer = _Outer(self.original, (args, kwargs))
        before = _generators()
        result = self.compiled(*args, **kwargs)
        if outer.parameters_changed():
            self.skipped = "it changes parameters in place (an optimizer step)"
            return result
        after = _generators()
        self.audits += 1
        with outer.as_before():
            _set_generators(before)
            try:
                with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    expected = self.original(*copied_args, **copied_kwargs)
            except Exception as error:
                self._report(f"eager raises {type(error).__name__}: {error}")
                return result
            finally:
                drew = any(map(_differ, _generators(), before))
                _set_generators(after)
            found = self._compare(expected, result, "the result", drew)
            found = found or self._compare((copied_args, copied_kwargs), (args, kwargs), "the arguments", drew)
            found = found or self._compare(outer.buffers(), outer.compiled_buffers, "the buffers", drew)
        if found is not None:
            self._report(str(found))
        return result

    def _compare(self, expected: Any, actual: Any, what: str, drew: bool) -> Mismatch | None:
        """The difference; values that depend on random numbers of another generator are not compared."""
        found = accuracy.compare(expected, actual, where=what)
        if found is not None and found.kind == "value" and drew and not config.fallback_random:
            return None
        return found

    def _report(self, text: str) -> None:
        self.findings.append(text)
        name = getattr(self.original, "__qualname__", repr(self.original))
        code = getattr(getattr(self.original, "__func__", self.original), "__code__", None)
        events.emit("audit", "debug", text, function=name, finding=text)
        if len(self.findings) > 1:
            return
        place = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
        said = (
            f"argand: audit of {name}{place}: the compiled call differs from eager: {text}\n"
            "A guard may be missing, or a kernel wrong: argand.config.check_numerics = True and "
            "ARGAND_REPRO_AFTER=dynamo ARGAND_REPRO_LEVEL=4 find wrong kernels; ARGAND_LOGS=guards shows the guards. "
            "argand.disable on the function leaves it out meanwhile."
        )
        if code is None:
            warnings.warn(said, AuditWarning, stacklevel=3)
        else:
            warnings.warn_explicit(said, AuditWarning, code.co_filename, code.co_firstlineno)


class _Copier:
    """Copies tensors and containers; other objects are shared. Tensors that share memory still do in the copy."""

    def __init__(self) -> None:
        self.memo: dict[int, Any] = {}
        self.storages: dict[int, torch.UntypedStorage] = {}
        self.kept: list[Any] = []

    def copy(self, value: Any) -> Any:
        found = self.memo.get(id(value))
        if found is None:
            self.kept.append(value)
            found = self.memo[id(value)] = self._copy(value)
        return found

    def _copy(self, value: Any) -> Any:
        if isinstance(value, torch.nn.Parameter):
            return value  # writes to parameters end the audit
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if type(value) in (list, set):
            return type(value)(map(self.copy, value))
        if isinstance(value, tuple):
            items = tuple(map(self.copy, value))
            return items if type(value) is tuple else type(value)(*items) if hasattr(value, "_fields") else value
        if type(value) is dict:
            return {key: self.copy(item) for key, item in value.items()}
        return value

    def _tensor(self, value: torch.Tensor) -> torch.Tensor:
        if type(value) is not torch.Tensor or value.layout is not torch.strided:
            return value.detach().clone().requires_grad_(value.requires_grad)
        key = value.untyped_storage()._cdata
        storage = self.storages.get(key)
        if storage is None:
            storage = self.storages[key] = value.untyped_storage().clone()
        made = torch.empty(0, dtype=value.dtype, device=value.device)
        made.set_(storage, value.storage_offset(), value.shape, value.stride())
        return made.requires_grad_(value.requires_grad)


class _Outer:
    """What a function may change outside its arguments, as it is before a call: module state, globals, cells."""

    def __init__(self, function: Any, arguments: Any) -> None:
        self.modules = list(dict.fromkeys(m for root in _modules(function, arguments) for m in root.modules()))
        self.tensors = {
            (number, name): value
            for number, module in enumerate(self.modules)
            for name, value in module._buffers.items()
            if value is not None
        }
        self.parameters = [p for module in self.modules for p in module._parameters.values() if p is not None]
        self.versions = [parameter._version for parameter in self.parameters]
        self.old = {key: clone_strided(value.detach()) for key, value in self.tensors.items()}
        self.dicts = [vars(module) for module in self.modules]
        self.cells = [cell for fn in _functions(function) for cell in fn.__closure__ or ()]
        self.globals = _written_globals(function)
        self.before = self._state()
        self.compiled_buffers: dict[Any, torch.Tensor] = {}

    def parameters_changed(self) -> bool:
        return [parameter._version for parameter in self.parameters] != self.versions

    def buffers(self) -> dict[Any, torch.Tensor]:
        """The buffers now, by module and name."""
        return dict(self._now())

    def _now(self) -> Iterator[tuple[Any, torch.Tensor]]:
        for number, name in self.tensors:
            value = self.modules[number]._buffers.get(name)
            if value is not None:
                yield (number, name), value

    def _state(self) -> list[Any]:
        """Attributes, cells and globals, and the contents of the lists, dicts and sets among them."""
        places: list[Any] = [dict(attributes) for attributes in self.dicts]
        places += [[_contents(cell) for cell in self.cells], [(d, n, d.get(n, _MISSING)) for d, n in self.globals]]
        values = [v for place in places[: len(self.dicts)] for v in place.values()]
        values += [*places[-2], *(v for _, _, v in places[-1])]
        containers = [v for v in values if type(v) in (list, dict, set)]
        return [*places, [(c, c.copy()) for c in containers]]

    def _restore(self, state: list[Any]) -> None:
        *attributes, cells, names, containers = state
        for target, saved in zip(self.dicts, attributes):
            for name in target.keys() - saved.keys():
                del target[name]
            target.update({name: value for name, value in saved.items() if target.get(name, _MISSING) is not value})
        for cell, value in zip(self.cells, cells):
            if value is not _MISSING and _contents(cell) is not value:
                cell.cell_contents = value
        for target, name, value in names:
            if value is _MISSING:
                target.pop(name, None)
            else:
                target[name] = value
        for container, saved in containers:
            if not _same_items(container, saved):
                container.clear()
                container.extend(saved) if isinstance(container, list) else container.update(saved)

    @contextlib.contextmanager
    def as_before(self) -> Iterator[None]:
        """Meanwhile everything is as it was before the compiled call; then as that left it."""
        now = self._state()
        self.compiled_buffers = {key: value.detach().clone() for key, value in self._now()}
        self._restore(self.before)
        with torch.no_grad():
            for key, value in self.tensors.items():
                if not torch.equal(value, self.old[key]):
                    value.copy_(self.old[key])
        try:
            yield
        finally:
            self._restore(now)
            with torch.no_grad():
                for key, value in self._now():
                    value.copy_(self.compiled_buffers[key])


_MISSING = object()


def _same_items(one: Any, two: Any) -> bool:
    """The same objects, in the same order; nothing of theirs is asked."""
    if len(one) != len(two):
        return False
    if isinstance(one, dict):
        return all(a is b and one[a] is two[b] for a, b in zip(one, two))
    if isinstance(one, set):
        return {id(item) for item in one} == {id(item) for item in two}
    return all(a is b for a, b in zip(one, two))


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING


def _functions(function: Any, depth: int = 0) -> list[types.FunctionType]:
    """The Python function behind a callable, and those in its closure."""
    function = getattr(function, "__func__", function)
    if isinstance(function, functools.partial):
        return _functions(function.func, depth)
    if isinstance(function, torch.nn.Module):
        return _functions(type(function).forward, depth)
    if not isinstance(function, types.FunctionType) or depth > _TOO_DEEP:
        return []
    inner = [f for cell in function.__closure__ or () for f in _functions(_contents(cell), depth + 1)]
    return [function, *inner]


def _modules(function: Any, arguments: Any) -> list[torch.nn.Module]:
    """Modules that a function may use: its own, those in its arguments, its closure and the globals it names."""
    found: list[torch.nn.Module] = []

    def look(value: Any, depth: int = 0) -> None:
        if isinstance(value, torch.nn.Module):
            found.append(value)
        elif isinstance(value, (list, tuple)) and depth < _TOO_DEEP:
            for item in value:
                look(item, depth + 1)
        elif isinstance(value, dict) and depth < _TOO_DEEP:
            look(tuple(value.values()), depth + 1)

    look(getattr(function, "__self__", None))
    look(function)
    look(arguments)
    for fn in _functions(function):
        look([_contents(cell) for cell in fn.__closure__ or ()])
        look([fn.__globals__[name] for name in fn.__code__.co_names if name in fn.__globals__])
    return found


def _written_globals(function: Any) -> list[tuple[dict[str, Any], str]]:
    """Globals that a function assigns, or that it names and that are containers."""
    found: dict[tuple[int, str], tuple[dict[str, Any], str]] = {}
    for fn in _functions(function):
        written = {i.argval for i in dis.get_instructions(fn) if i.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")}
        for name in fn.__code__.co_names:
            if name in written or type(fn.__globals__.get(name)) in (list, dict, set):
                found[id(fn.__globals__), name] = (fn.__globals__, name)
    return list(found.values())


def _generators() -> list[Any]:
    """States of the random number generators."""
    drawn, of_gpus = gpus.generators()
    return [drawn, random.getstate(), *of_gpus]


def _set_generators(states: list[Any]) -> None:
    random.setstate(states[1])
    gpus.set_generators((states[0], states[2:]))


def _differ(one: Any, two: Any) -> bool:
    return not torch.equal(one, two) if isinstance(one, torch.Tensor) else bool(one != two)

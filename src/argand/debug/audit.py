"""`config.audit_rate`: a sample of the calls of compiled functions is also run eagerly, and compared.

A compiled function is right as long as its guards notice every change that matters. This looks, in production,
whether they do. The eager run comes second, on copies of the arguments, and leaves no trace: buffers, attributes,
globals, cells and random number generators are what the compiled run made them. What differs is reported once for each
function.
"""

from __future__ import annotations

import contextlib
import io
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from argand import events
from argand.config import config
from argand.debug import accuracy, gpus
from argand.debug.accuracy import Mismatch
from argand.debug.observe import code_of, place_of, stand_in
from argand.debug.tensors import clone_strided
from argand.debug.trial.scope import MISSING, contents_of, functions_of, roots_of, written_globals
from argand.graph.compat import storage_address


class AuditWarning(UserWarning):
    """A compiled function did something else than eager does."""


def audited(compiled: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """`compiled`, some of whose calls are checked against `original`."""
    auditor = Auditor(compiled, original)

    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return auditor.run(args, kwargs) if auditor.picks() else compiled(*args, **kwargs)

    audited_function = stand_in(original, call)
    audited_function.__dict__["auditor"] = auditor
    return audited_function


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
        before, sent = _generators(), _communications()
        result = self.compiled(*args, **kwargs)
        if outer.parameters_changed():
            self.skipped = "it changes parameters in place (an optimizer step)"
        elif _communications() != sent:
            self.skipped = "it communicates: other processes would take what is sent twice for their next"
        if self.skipped:
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
            mismatch = self._compare(expected, result, "the result", drew)
            mismatch = mismatch or self._compare((copied_args, copied_kwargs), (args, kwargs), "the arguments", drew)
            mismatch = mismatch or self._compare(outer.buffers(), outer.compiled_buffers, "the buffers", drew)
        if mismatch is not None:
            self._report(str(mismatch))
        return result

    def _compare(self, expected: Any, actual: Any, what: str, drew: bool) -> Mismatch | None:
        """The difference; values that depend on random numbers of another generator are not compared."""
        mismatch = accuracy.compare(expected, actual, where=what)
        if mismatch is not None and mismatch.kind == "value" and drew and not config.fallback_random:
            return None
        return mismatch

    def _report(self, text: str) -> None:
        self.findings.append(text)
        name = getattr(self.original, "__qualname__", repr(self.original))
        code = code_of(self.original)
        events.emit("audit", "debug", text, function=name, finding=text)
        if len(self.findings) > 1:
            return
        place = f" ({place_of(self.original)})" if code is not None else ""
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
        twin = self.memo.get(id(value))
        if twin is None:
            self.kept.append(value)
            twin = self.memo[id(value)] = self._copy(value)
        return twin

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
        key = storage_address(value)
        storage = self.storages.get(key)
        if storage is None:
            storage = self.storages[key] = value.untyped_storage().clone()
        twin = torch.empty(0, dtype=value.dtype, device=value.device)
        twin.set_(storage, value.storage_offset(), value.shape, value.stride())
        return twin.requires_grad_(value.requires_grad)


class _Outer:
    """What a function may change outside its arguments, as it is before a call: module state, globals, cells."""

    def __init__(self, function: Any, arguments: Any) -> None:
        self.modules = list(dict.fromkeys(m for root in roots_of(function, arguments) for m in root.modules()))
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
        self.cells = [cell for fn in functions_of(function) for cell in fn.__closure__ or ()]
        self.globals = written_globals(function)
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
        places += [[contents_of(cell) for cell in self.cells], [(d, n, d.get(n, MISSING)) for d, n in self.globals]]
        values = [v for place in places[: len(self.dicts)] for v in place.values()]
        values += [*places[-2], *(v for _, _, v in places[-1])]
        containers = [v for v in values if type(v) in (list, dict, set)]
        return [*places, [(c, c.copy()) for c in containers]]

    def _restore(self, state: list[Any]) -> None:
        *attributes, cells, names, containers = state
        for target, saved in zip(self.dicts, attributes):
            for name in target.keys() - saved.keys():
                del target[name]
            target.update({name: value for name, value in saved.items() if target.get(name, MISSING) is not value})
        for cell, value in zip(self.cells, cells):
            if value is not MISSING and contents_of(cell) is not value:
                cell.cell_contents = value
        for target, name, value in names:
            if value is MISSING:
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


def _same_items(one: Any, two: Any) -> bool:
    """The same objects, in the same order; nothing of theirs is asked."""
    if len(one) != len(two):
        return False
    if isinstance(one, dict):
        return all(a is b and one[a] is two[b] for a, b in zip(one, two))
    if isinstance(one, set):
        return {id(item) for item in one} == {id(item) for item in two}
    return all(a is b for a, b in zip(one, two))


def _communications() -> list[object]:
    """How often each process group was used; of one that does not count, an object that equals no other."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    groups = [] if c10d is None or not c10d.is_initialized() else c10d._world.pg_map
    numbers: list[object] = []
    for group in groups:
        try:
            numbers.append(group._get_sequence_number_for_group())
        except RuntimeError:
            numbers.append(object())
    return numbers


def _generators() -> list[Any]:
    """States of the random number generators."""
    drawn, of_gpus = gpus.generators()
    return [drawn, random.getstate(), *of_gpus]


def _set_generators(states: list[Any]) -> None:
    random.setstate(states[1])
    gpus.set_generators((states[0], states[2:]))


def _differ(one: Any, two: Any) -> bool:
    return not torch.equal(one, two) if isinstance(one, torch.Tensor) else bool(one != two)

"""Host modules that are loaded later than they are made: meanwhile a compiler makes their kernels.

Inside of `gathered`, who makes a host module leaves it here. Its `call` can be handed on at once. The module is loaded
when the scope is finished, or by the first call. What there is to do until the kernels are there can be left here, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from types import FunctionType, ModuleType
from typing import Any

import torch

from argand import events
from argand._core import _C
from argand._core.calls import uncaptured
from argand.errors import ArgandError
from argand.locks import fork_safe_lock
from argand.runtime.host import HostCall, execute
from argand.runtime.kernels import background_libraries
from argand.threads import bound

_FINISHED = "_argand_finished"


def _first_call(args: list[Any]) -> Any:  # its code runs among the names of a host module
    return _argand_finished()(args)  # type: ignore[name-defined]  # noqa: F821


class LateModule:
    """One host module.

    Arguments:
        text: of the module.
        constants: tensors that it names.
        graph: how the names of its kernels begin in profiles.
        kernels: the C++ text and its parts.
        failed: what to call instead when it cannot be loaded, or raises the error.

    Fields:
        call: the module's `call`.
    """

    def __init__(
        self,
        text: str,
        constants: Mapping[str, torch.Tensor],
        graph: str,
        kernels: tuple[str, Sequence[str]],
        failed: Callable[[HostCall, ArgandError], HostCall],
    ) -> None:
        module = ModuleType("argand_output_code")
        module.__dict__[_FINISHED] = self.loaded
        call = FunctionType(_first_call.__code__, module.__dict__, "call")
        self.call: HostCall = call
        self._kernels = kernels
        self._lock = fork_safe_lock()
        self._loaded_call: HostCall | None = None

        def load() -> HostCall:
            try:
                with events.span("load", "runtime"):
                    execute(module, text, constants, graph=graph)
            except ArgandError as error:
                return failed(call, error)
            loaded: HostCall = module.__dict__["call"]
            if type(loaded) is not FunctionType or loaded.__closure__:
                return loaded
            call.__code__ = loaded.__code__  # who has it calls the kernels with nothing in between
            return call

        self._load: Callable[[], HostCall] = load

    def waits(self) -> bool:
        """Whether its compiler is running."""
        return self._loaded_call is None and background_libraries.running(*self._kernels)

    def loaded(self) -> HostCall:
        """What `call` is, or calls.

        Raises:
            CppCompileError: the compiler refused the text.
        """
        if self._loaded_call is None:
            uncaptured(_C.call_locked, self._lock, self._finish)
        assert self._loaded_call is not None
        return self._loaded_call

    def _finish(self) -> None:
        if self._loaded_call is None:
            self._loaded_call = self._load()
            self._load = lambda: self.call  # lets go of the text, and of the program
            self._kernels = "", ()


class Scope:
    """Host modules that were made, and what to do until their kernels are there.

    Fields:
        modules: the former.
        meanwhile: the latter, in the order of its use.
    """

    def __init__(self) -> None:
        self.modules: list[LateModule] = []
        self.meanwhile: list[Callable[[], object]] = []

    def use_time(self) -> None:
        """Do what there is to do while compilers run: the sooner, the sooner those run that this starts."""
        while self.meanwhile and any(module.waits() for module in self.modules):
            self.meanwhile.pop(0)()

    def finish(self) -> None:
        """Load them.

        Raises:
            ArgandError: one cannot be loaded, and there is nothing to run instead.
        """
        self.use_time()
        self.meanwhile.clear()
        for module in self.modules:
            module.loaded()


_scope: ContextVar[Scope | None] = ContextVar("argand_late_modules", default=None)


def scope() -> Scope | None:
    """Where host modules may be left; None where they are loaded at once."""
    return _scope.get()


@contextlib.contextmanager
def gathered(allowed: bool = True) -> Iterator[Scope]:
    """Inside, host modules are left in the scope, which is then to be finished.

    Arguments:
        allowed: False has them loaded at once.
    """
    gathering = Scope()
    with bound(_scope, gathering if allowed else None):
        yield gathering

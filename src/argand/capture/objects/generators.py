"""Generators of the traced program: real iterators that re-enter the interpreter, so that native code can use them."""

from __future__ import annotations

from types import CellType, CodeType, GeneratorType
from typing import Any, Final

from argand._core import _C
from argand.bytecode.opcodes import CO_ASYNC_GENERATOR, CO_COROUTINE, PY312, PY313
from argand.capture.facts.exceptions import ExcState, InternalFailure, ObservedException, chain_context, raise_native
from argand.capture.facts.frames import NULL, YIELD, Frame, Previous
from argand.capture.facts.interfaces import Interpreter
from argand.capture.facts.kinds import is_a
from argand.capture.objects import text
from argand.errors import graph_break
from argand.quick_dataclasses import dataclass


class TracedGenerator:
    """What calling a generator function gives inside captured code.

    Fields that the program may see are named as those of CPython's generators.
    """

    __slots__ = (
        "__name__", "__qualname__", "__weakref__", "_exc", "_finished", "_frame", "_interp", "_started", "gi_code",
        "gi_running",
    )  # fmt: skip

    def __init__(self, interp: Interpreter, frame: Frame) -> None:
        self._interp = interp
        self._frame = frame
        self._exc = ExcState()
        self._started = False
        self._finished = False
        self.gi_running = False
        self.gi_code: CodeType = frame.code
        func = frame.func
        self.__name__ = func.__name__ if func is not None else frame.code.co_name
        self.__qualname__ = func.__qualname__ if func is not None else frame.code.co_qualname

    # ---- for native code -------------------------------------------------------------------------------------------

    def __iter__(self) -> TracedGenerator:
        return self

    def __next__(self) -> object:
        return self._native(None, None)

    def send(self, value: object) -> object:
        """As a generator's `send`."""
        return self._native(value, None)

    def throw(self, *args: object) -> object:
        """As a generator's `throw`."""
        return self._native(None, args)

    def close(self) -> object:
        """As a generator's `close`."""
        return self._interp.enter(close_in, (self,), {})

    def _native(self, value: object, thrown: tuple[object, ...] | None) -> object:
        interp = self._interp
        try:
            if thrown is None:
                done, result = resume(self, value)
            else:
                done, result = throw(self, *thrown)
        except ObservedException as observed:
            exc = observed.value
        except Exception as bug:
            raise InternalFailure(bug) from bug
        else:
            if not done:
                return result
            exc = StopIteration(result) if result is not None else StopIteration()
        interp.propagating = exc
        try:
            raise_native(exc)
        finally:
            del exc  # its traceback refers to this frame

    @property
    def gi_frame(self) -> None:
        raise graph_break(kind="frame of a generator")

    @property
    def gi_suspended(self) -> bool:
        return is_suspended(self)

    @property
    def gi_yieldfrom(self) -> object:
        receiver = yielding_from(self)
        return None if receiver is NULL else receiver

    def __del__(self) -> None:
        """Abandoned: what is open in its body (`finally`, `with`) ends now, as the program would see it."""
        interp = self._interp
        if not is_suspended(self) or getattr(interp, "over", True) or interp.pending is not None:
            return
        try:
            close_in(self)
        except ObservedException as observed:
            interp.pending = graph_break(
                kind="exception in an abandoned generator",
                context=repr(observed.value),
                explanation=f"The generator {self.__qualname__}, to which nothing refers any more, raised when closed.",
                skip_frame=True,  # it is closed by now: no code that goes on here could have Python tell of the error
            )
        except BaseException as error:  # a finalizer cannot raise: the root frame does
            interp.pending = error

    def __repr__(self) -> str:
        return f"<generator object {self.__qualname__} at {id(self):#x}>"


TracedGenerator.__name__ = "generator"  # what C code calls it
METHODS: Final[dict[object, object]] = {
    getattr(TracedGenerator, name): getattr(GeneratorType, name)
    for name in ("__iter__", "__next__", "send", "throw", "close")
}
"""What behind the graph stands for its methods."""


def make(interp: Interpreter, frame: Frame) -> TracedGenerator:
    """RETURN_GENERATOR: the generator that owns this frame from now on."""
    if frame.program.flags & (CO_COROUTINE | CO_ASYNC_GENERATOR):
        raise graph_break(kind="async function", context=frame.code.co_qualname)
    generator = TracedGenerator(interp, frame)
    interp.generators.add(generator)
    frame.exc = generator._exc
    interp.born[id(generator)] = (None, interp.number)  # its lifetime is the program's: nothing here may prolong it
    return generator


def first_argument(generator: TracedGenerator) -> object:
    """The first local variable of the body of a generator; NULL once that is over."""
    return NULL if generator._finished else generator._frame.fast[0]


def is_suspended(generator: TracedGenerator) -> bool:
    """Whether it stands at a yield."""
    return generator._started and not generator._finished and not generator.gi_running


@dataclass(frozen=True, slots=True)
class Parts:
    """What a suspended generator holds: on its stack, in its variables that are set, in its cells."""

    stack: tuple[object, ...]
    variables: dict[str, object]
    cells: dict[str, object]


def parts_at_yield(generator: TracedGenerator) -> Parts | None:
    """What a generator holds that stands at a `yield`; None for one that has not begun or is over, and where it handles
    an exception there, or is in the middle of a call."""
    frame = generator._frame
    if not is_suspended(generator) or generator._exc.value is not None:
        return None
    if any(value is NULL or type(value) is Previous for value in frame.stack):
        return None
    variables: dict[str, object] = {}
    cells: dict[str, object] = {}
    for name, value in zip(frame.program.names, frame.fast):
        if value is not NULL:
            (cells if is_a(value, CellType) else variables)[name] = value
    return Parts(tuple(frame.stack), variables, cells)


def ends_visibly(obj: object) -> bool:
    """Whether closing this generator, when nothing refers to it any more, may run code of the program."""
    return type(obj) is TracedGenerator and any(
        inst.opname == "PUSH_EXC_INFO" for inst in obj._frame.program.instructions
    )


def abandoned_by_exception(values: list[object]) -> bool:
    """Whether a frame that an exception leaves holds suspended generators. They live on with the exception's
    traceback, which captured code does not have."""
    return any(type(value) is TracedGenerator and is_suspended(value) for value in values)


def resume(generator: TracedGenerator, value: object, thrown: BaseException | None = None) -> tuple[bool, object]:
    """Run to the next yield. Returns (finished, yielded or returned value)."""
    interp = generator._interp
    if generator.gi_running:
        raise interp.throw(ValueError("generator already executing"))
    if generator._finished:
        if thrown is not None:
            raise ObservedException(thrown)
        return True, None
    if not generator._started:
        if value is not None and thrown is None:
            raise interp.throw(TypeError("can't send non-None value to a just-started generator"))
    generator._started = True
    frame = generator._frame
    generator._exc.previous = interp.frames[-1].exc if interp.frames else interp.base_exc
    if thrown is None:
        frame.stack.append(value)
    else:
        chain_context(thrown, generator._exc.value)
    generator.gi_running = True
    signal: object = None
    try:
        signal = interp.run(frame, thrown)
    except ObservedException as observed:
        exc = observed.value
    finally:
        generator.gi_running = False
        generator._exc.previous = None
        if signal is not YIELD:
            generator._finished = True
    if signal is YIELD:
        result, frame.result = frame.result, None
        return False, result
    if signal is not None:
        result, frame.result = frame.result, None
        _clear(frame)
        return True, result
    if is_a(exc, StopIteration) and not PY312:
        raise ObservedException(stop_iteration_error(exc))
    raise ObservedException(exc)


def _clear(frame: Frame) -> None:
    """What a body that is over holds goes, and with it generators that nothing else holds."""
    frame.stack.clear()
    for i, value in enumerate(frame.fast):
        if not is_a(value, CellType):
            frame.fast[i] = NULL


def stop_iteration_error(exc: BaseException) -> BaseException:
    """StopIteration that would leave a generator body."""
    if not is_a(exc, StopIteration):
        return exc
    error = RuntimeError("generator raised StopIteration")
    error.__cause__ = exc
    error.__context__ = exc
    return error


def yielding_from(generator: TracedGenerator) -> object:
    """The iterator that a suspended generator delegates to, or NULL."""
    if not generator._started or generator._finished or generator.gi_running:
        return NULL
    frame = generator._frame
    following = frame.program.instructions[frame.pc]
    if following.opname == "RESUME" and ((following.arg or 0) & 3) >= 2 and frame.stack:
        return frame.stack[-1]
    return NULL


def _thrown(interp: Interpreter, args: tuple[Any, ...]) -> BaseException:
    """The exception that `throw(*args)` means."""
    kind, value, traceback = (*args, None, None)[:3]
    if is_a(kind, type) and issubclass(kind, BaseException):
        if is_a(value, kind):
            exc: Any = value
        elif value is None:
            exc = interp.call(kind)
        elif is_a(value, tuple):
            exc = interp.call(kind, value)
        else:
            exc = interp.call(kind, (value,))
    elif is_a(kind, BaseException):
        if value is not None:
            raise interp.throw(TypeError("instance exception may not have a separate value"))
        exc = kind
    else:
        name = _C.type_name(type(kind))
        raise interp.throw(
            TypeError(f"exceptions must be classes or instances deriving from BaseException, not {name}")
        )
    if not is_a(exc, BaseException):
        wanted, actual = text.to_repr(interp, kind), text.to_repr(interp, type(exc))
        raise interp.throw(
            TypeError(f"calling {wanted} should have returned an instance of BaseException, not {actual}")
        )
    if traceback is not None:
        exc.__traceback__ = traceback
    return exc


def result(interp: Interpreter, done: bool, value: object) -> object:
    """What a method of a generator gives, or raises where the generator is over."""
    if done:
        raise interp.throw(StopIteration(value) if value is not None else StopIteration())
    return value


def throw(generator: TracedGenerator, *args: object) -> tuple[bool, object]:
    """`generator.throw(...)`: (finished, value)."""
    interp = generator._interp
    exc = _thrown(interp, args)
    receiver = yielding_from(generator)
    if receiver is NULL:
        return resume(generator, None, exc)
    generator.gi_running = True
    result: object = None
    done = False
    try:
        if is_a(exc, GeneratorExit):
            _close_iterator(interp, receiver)
            inner: BaseException | None = exc
        else:
            done, result, inner = _throw_into(interp, receiver, exc, args)
    except ObservedException as observed:
        inner = observed.value
    finally:
        generator.gi_running = False
    if inner is None and not done:
        return False, result
    if inner is not None:
        return resume(generator, None, inner)
    return _after_delegate(generator, result)


def _throw_into(
    interp: Interpreter, receiver: object, exc: BaseException, args: tuple[object, ...]
) -> tuple[bool, object, BaseException | None]:
    """(delegate finished, value, exception to throw into the delegating generator)."""
    if type(receiver) is TracedGenerator:
        done, result = throw(receiver, *args)
        return done, result, None
    method = interp.try_attr(receiver, "throw")
    if method is NULL:
        return False, None, exc
    try:
        return False, interp.call(method, args), None
    except ObservedException as observed:
        if is_a(observed.value, StopIteration):
            return True, observed.value.value, None
        raise


def _after_delegate(generator: TracedGenerator, result: object) -> tuple[bool, object]:
    """The delegate returned in answer to a throw: go on behind the `yield from`."""
    frame = generator._frame
    if PY312:
        return resume(generator, None, StopIteration(result))
    send = frame.program.instructions[frame.pc - 2]
    if send.target is not None:
        frame.stack.pop()
        frame.pc = frame.program.index[send.target]
    return resume(generator, result)


def _close_iterator(interp: Interpreter, receiver: object) -> None:
    if type(receiver) is TracedGenerator:
        close_in(receiver)
        return
    method = interp.try_attr(receiver, "close")
    if method is not NULL:
        interp.call(method)


def close_in(generator: TracedGenerator) -> object:
    """`generator.close()`."""
    interp = generator._interp
    if generator._finished:
        return None
    if not generator._started:
        generator._finished = True
        return None
    if generator.gi_running:
        raise interp.throw(ValueError("generator already executing"))
    exc: BaseException = GeneratorExit()
    receiver = yielding_from(generator)
    if receiver is not NULL:
        generator.gi_running = True
        try:
            _close_iterator(interp, receiver)
        except ObservedException as observed:
            exc = observed.value
        finally:
            generator.gi_running = False
    outer, interp.closing = interp.closing, exc
    try:
        done, result = resume(generator, None, exc)
    except ObservedException as observed:
        if is_a(observed.value, StopIteration | GeneratorExit):
            _clear(generator._frame)
            return None
        raise
    finally:
        interp.closing = outer
    if not done:
        raise interp.throw(RuntimeError("generator ignored GeneratorExit"))
    return result if PY313 else None

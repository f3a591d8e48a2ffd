"""Lets go of what a capture looked at as soon as it is over.

State, interpreter and frames refer to each other in circles: without this, the program's objects would live until the
next garbage collection, and weak references and finalizers would show it.
"""

from __future__ import annotations

import abc
import contextlib

from argand.capture.facts.typefacts import HEAP_TYPE
from argand.capture.interp.state import CaptureState
from argand.capture.record import tensor_attributes
from argand.errors import GraphBreak


class _Parked:
    """Base of classes that a capture made and does not need any more."""


def forget(state: CaptureState) -> None:
    """Empty a capture state that is not needed any more, with its interpreter and the frames that it ran."""
    interpreter = state.interpreter
    for frame in (interpreter.root, *(generator._frame for generator in interpreter.generators)):
        if frame is not None:
            frame.fast = []
            frame.stack = []
            frame.func = frame.locals = frame.result = None
            frame.closure = ()
            frame.exc.value = None
    for cls in interpreter.local_classes.values():
        _leave_bases(cls)
    for info in state.tensors.values():
        info.constant = None  # which may be yet to be read, by means of the state
        tensor_attributes.written(info.tensor).clear()  # the graph keeps stand-ins
    vars(interpreter).clear()
    vars(state.graph).clear()  # which knows the program's tensors
    vars(state).clear()


def forget_frames(ending: GraphBreak) -> None:
    """Frames of its traceback hold the program's objects, maybe as the last to, and one of them may hold `ending`."""
    ending.__traceback__ = ending.__context__ = None


def _leave_bases(cls: type) -> None:
    """Take a class out of the `__subclasses__()` of its bases, where it would stay until the next collection."""
    if type(cls) not in (type, abc.ABCMeta) or not any(base.__flags__ & HEAP_TYPE for base in cls.__bases__):
        return
    with contextlib.suppress(TypeError):  # their instances are laid out differently: it stays for a while
        cls.__bases__ = (_Parked,)

"""Functions of argand's that captured code may call: what becomes of them."""

from __future__ import annotations

from argand._core import _C
from argand.capture.driver import strict
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import CaptureState
from argand.capture.objects.call_protocol import native_handlers
from argand.capture.torch_functions import torch_calls


def _error_on_graph_break(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """torch's context manager of this name, in captured code: argand's, which means the same."""
    return state.interpreter.call(strict.error_on_graph_break, args, kwargs)


torch_calls.enter_late({"_dynamo.decorators.error_on_graph_break": _error_on_graph_break})


native_handlers.function(_C.set_regions_enabled)(
    native_handlers.breaking(
        "change of the stance",
        "argand.set_stance changes what every compiled function does, which must happen at each call.",
        "Set the stance around the call of the compiled function.",
    )
)

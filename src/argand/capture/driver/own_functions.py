"""Functions of argand's that captured code may call: what becomes of them."""

from __future__ import annotations

from argand._core import _C
from argand.capture.driver import strict
from argand.capture.objects.call_protocol import native_handlers
from argand.capture.torch_functions import torch_calls

# torch's context manager of this name is argand's, which means the same
torch_calls.enter_late({"_dynamo.decorators.error_on_graph_break": torch_calls.instead(strict.error_on_graph_break)})
native_handlers.function(_C.set_regions_enabled)(
    native_handlers.breaking(
        "change of the stance",
        "argand.set_stance changes what every compiled function does, which must happen at each call.",
        "Set the stance around the call of the compiled function.",
    )
)

"""`argand::mkldnn_rnn_layer`: torch's LSTM kernel, with the workspace that its backward reads.

torch's own kernel returns the workspace only while gradients are recorded; inside a compiled forward they are not.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

aten = torch.ops.aten


class RecurrentOps:
    """The registered op."""

    def __init__(self, library: torch.library.Library) -> None:
        self._library = library  # the registration lives as long as this
        self.mkldnn_rnn_layer: Any = torch.ops.argand.mkldnn_rnn_layer.default


@functools.cache
def recurrent_ops() -> RecurrentOps:
    """Defines the op, once per process."""
    library = torch.library.Library("argand", "FRAGMENT")
    library.define("mkldnn_rnn_layer" + str(aten.mkldnn_rnn_layer.default._schema).split("mkldnn_rnn_layer", 1)[1])
    library.impl("mkldnn_rnn_layer", _with_workspace, "CPU")
    library.impl("mkldnn_rnn_layer", aten.mkldnn_rnn_layer.default, "Meta")
    return RecurrentOps(library)


def _with_workspace(*args: Any, **kwargs: Any) -> Any:
    detached = [arg.detach() if isinstance(arg, torch.Tensor) else arg for arg in args]
    with torch.enable_grad():
        return aten.mkldnn_rnn_layer.default(*detached, **kwargs)

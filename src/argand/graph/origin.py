"""Where an operation of a program came from."""

from __future__ import annotations

from argand.quick_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeOrigin:
    """Where an ATen node came from.

    Arguments:
        source_node: name of the torch-level node that was running when it was recorded.
        user_line: "file.py:12 in forward: text", or "".
        made_by: name of the pass that made the node, or "" when the tracer did.
        caller: the program's own line that led to `user_line`, when that is one of torch's (a library module's); or "".
    """

    source_node: str = ""
    user_line: str = ""
    made_by: str = ""
    caller: str = ""

"""What every FX node of an ATen graph carries, and helpers to read it."""

from __future__ import annotations

import functools
import operator
import os
import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from argand.errors import UserLine
from argand.graph import compat
from argand.graph.operators.data_checks import must_stay

_TORCH = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "")
_FRAME = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<func>\S+)')
_USER_LINE = re.compile(r"^(?P<file>.+?):(?P<line>\d+) in (?P<function>[^:]+?)(?:: (?P<text>.*))?$")


_GUESS = "argand_guess"


def mark_guess(node: fx.Node) -> None:
    """Note that how a node is computed was to be timed, and could not: a later process does, once all is quiet."""
    node.meta[_GUESS] = True


def is_guess(node: fx.Node) -> bool:
    """Whether `mark_guess` was told of a node."""
    return _GUESS in node.meta


def user_line(node: fx.Node) -> str:
    """The user's line that made a node, as "file.py:12 in forward: text"; "" when unknown.

    Reads, in this order: an ATen node's `origin`, the `user_line` that capture writes, the innermost entry of
    `stack_trace`.
    """
    origin = node.meta.get("origin")
    if origin is not None:
        return str(origin.user_line)
    line = node.meta.get("user_line")
    if line:
        return str(line)
    trace = node.meta.get("stack_trace")
    if not trace:
        return ""
    where = _frames(str(trace)[str(trace).rfind('File "') :])
    if not where:
        return ""
    return _line_text(where[-1])


def caller_line(node: fx.Node) -> str:
    """The innermost line outside torch that led to a node, when `user_line` is one of torch's own; else ""."""
    origin = node.meta.get("origin")
    if origin is not None:
        return str(origin.caller)
    if not user_line(node).startswith(_TORCH):
        return ""
    for frame in reversed(user_stack(node)):
        if not frame.filename.startswith(_TORCH):
            return _line_text(frame)
    return ""


def distinct_lines(nodes: Iterable[fx.Node], most: int = 8) -> tuple[str, ...]:
    """The lines of the program, outside torch where that is known, that made some nodes."""
    lines = dict.fromkeys(caller_line(node) or user_line(node) for node in nodes)
    return tuple(filter(None, lines))[:most]


def _line_text(frame: UserLine) -> str:
    text = f"{frame.filename}:{frame.lineno} in {frame.function}"
    return f"{text}: {frame.text}" if frame.text else text


def user_lines(node: fx.Node) -> tuple[UserLine, ...]:
    """The user's line that made a node, as an error carries it; empty when unknown."""
    place = _USER_LINE.match(user_line(node))
    if place is None:
        return ()
    return (UserLine(place["file"], int(place["line"]), place["function"], place["text"] or ""),)


def user_stack(node: fx.Node) -> tuple[UserLine, ...]:
    """The `stack_trace` of a torch-level node as user lines, outermost first."""
    trace = node.meta.get("stack_trace")
    return _frames(str(trace)) if trace else ()


@functools.lru_cache(maxsize=256)  # a graph is traced several times, and its layers stand at the same lines
def _frames(trace: str) -> tuple[UserLine, ...]:
    lines = trace.splitlines()
    user_frames: list[UserLine] = []
    for number, line in enumerate(lines):
        match = _FRAME.match(line)
        if match is None:
            continue
        following = lines[number + 1].strip() if number + 1 < len(lines) else ""
        text = "" if _FRAME.match(following) else following
        user_frames.append(UserLine(match["file"], int(match["line"]), match["func"].rstrip(","), text))
    return tuple(user_frames)


def is_view(node: fx.Node) -> bool:
    """The node's result shares the memory of its argument."""
    return isinstance(node.target, torch._ops.OpOverload) and compat.is_view_op(node.target)


def viewed(node: fx.Node) -> fx.Node:
    """What a chain of views starts from."""
    while is_view(node) or (node.target is operator.getitem and is_view(node.all_input_nodes[0])):
        node = node.all_input_nodes[0]
    return node


def is_impure(node: fx.Node) -> bool:
    """The node must stay, in order, even when nobody reads it: it draws random numbers or has an effect."""
    if node.op in ("placeholder", "output"):
        return True
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    return compat.has_effect(node.target, node.args, node.kwargs)


def eliminate_dead(graph: fx.Graph) -> int:
    """Remove nodes whose results nobody reads; placeholders stay, and nodes with effects or that may raise because of
    what their tensors hold. Returns how many went."""
    gone = 0
    for node in reversed(graph.nodes):
        if not node.users and node.op not in ("placeholder", "output") and not must_stay(node):
            graph.erase_node(node)
            gone += 1
    return gone


def attribute(root: Any, path: str) -> Any:
    """What a `get_attr` or `call_module` target stands for."""
    for part in path.split("."):
        root = getattr(root, part)
    return root

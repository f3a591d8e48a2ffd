"""What a user sees of an exception that leaves compiled code: the frames of the program, once each."""

from __future__ import annotations

import functools
import os
import re
from types import TracebackType
from typing import Any

from torch import fx

from argand._core import _C
from argand.bytecode.assemble import Assembler
from argand.config import config
from argand.graph.dtensors import Asked
from argand.graph.nodes.meta import distinct_lines
from argand.graph.operators.collectives import starts
from argand.own_code import OWN_FOLDER

_ARGAND = OWN_FOLDER + os.sep
_GRAPH = "<eval_with_key>"
_GENERATED = (_GRAPH, "<argand", "output_code.py")  # graphs, wrappers and host modules that argand wrote
_PLACE = re.compile(r'  File "(.*)", line (\d+), in (\S+)$', re.MULTILINE)

_COLLECTIVES = "argand: lines with collectives"

Place = tuple[str, int, str]


@functools.lru_cache(maxsize=65536)
def is_ours(filename: str) -> bool:
    """Whether a file is argand's own, or code that argand made."""
    return filename.startswith((_ARGAND, *_GENERATED))


def tidy(error: BaseException) -> None:
    """Make an exception's traceback the one that eager would show, as far as that is possible.

    Frames of argand's are dropped (transformed code itself leaves out the callers of resume functions). Where the
    exception comes out of a captured graph, the lines of the program that the operation came from take the graph's
    place, or a note says how to find them. With `config.verbose` nothing is touched.
    """
    if config.verbose:
        return
    kept: list[tuple[TracebackType, int | None]] = []
    step = error.__traceback__
    dropped = caller = 0
    graph: list[Place] | None = None
    while step is not None:
        code = step.tb_frame.f_code
        if is_ours(code.co_filename) and not _of_the_program(step):
            dropped += 1
            if graph is None and code.co_filename.startswith(_GENERATED):
                graph, caller = _places(step), max(len(kept) - 1, 0)
                if graph and kept:
                    kept[-1] = (kept[-1][0], graph[0][1])
        else:
            kept.append((step, None))
        step = step.tb_next
    if not dropped:
        return
    linked: TracebackType | None = None
    for place in reversed((graph or [])[1:]):
        linked = _made_up(place, linked)
    for entry, line in reversed(kept):
        lasti = entry.tb_lasti if line is None else -1
        linked = TracebackType(linked, entry.tb_frame, lasti, line or entry.tb_lineno)
    error.__traceback__ = linked
    if graph == [] and kept and isinstance(error, Exception):
        code = kept[caller][0].tb_frame.f_code
        kinds = [const[1:] for const in code.co_consts if type(const) is tuple and const[:1] == (_COLLECTIVES,)]
        sends = "; it communicates in\n  " + "\n  ".join(dict.fromkeys(sum(kinds, ()))) if kinds else ""
        error.add_note(
            f"argand: raised by compiled operations of {code.co_name}, whose line is not known here{sends}"
            + ("" if sends else '; argand.compile(..., backend="eager") shows it.')
        )


def keep_lines(asm: Assembler, graph: fx.Graph) -> None:
    """Where the program communicates in a graph, for errors: others may be the cause, and it does not run again."""
    starting = [node for node in graph.nodes if starts(node.target) or isinstance(node.target, Asked)]
    lines = distinct_lines(starting)
    if lines:
        asm.load_const((_COLLECTIVES, *lines))
        asm.pop_top()


def _of_the_program(step: TracebackType) -> bool:
    """Whether this is a graph that the program made for itself: its operations do not come from captured lines."""
    nodes = getattr(getattr(step.tb_frame.f_locals.get("self"), "graph", None), "nodes", None)
    if nodes is None or not step.tb_frame.f_code.co_filename.startswith(_GRAPH):
        return False
    return not any("user_line" in node.meta or "example_value" in node.meta for node in nodes)


def _places(step: TracebackType) -> list[Place]:
    """Where in the program the operation at this line of a graph's text came from, outermost first; empty: unknown."""
    node = node_at(step)
    trace = node.meta.get("stack_trace", "") if node is not None else ""
    return [(file, int(line), function) for file, line, function in _PLACE.findall(trace)]


def node_at(step: TracebackType) -> Any:
    """The node that stands at this line of a graph's text; None: there is none."""
    if not step.tb_frame.f_code.co_filename.startswith(_GRAPH):
        return None
    module: Any = step.tb_frame.f_locals.get("self")
    nodes = getattr(getattr(module, "graph", None), "nodes", None)
    if nodes is None:
        return None
    lines = module.code.splitlines()
    # The text that was compiled may be preceded by imports: `def forward` is the line to count from.
    start = next((i for i, line in enumerate(lines) if line.startswith("def forward")), 0)
    number = step.tb_lineno - step.tb_frame.f_code.co_firstlineno + start
    text = lines[number] if 0 <= number < len(lines) else ""
    # `x[i] = y;  setitem = x` has the node's name behind what it does
    names = [part.strip().split(" ", 1)[0].rstrip(":") for part in text.split(";")]
    by_name = {node.name: node for node in nodes}
    return next((by_name[name] for name in names if name in by_name), None)


def _made_up(place: Place, following: TracebackType | None) -> TracebackType:
    """A traceback entry at a line whose frame does not exist (the call was inlined)."""
    filename, line, function = place
    code = compile("", filename, "exec").replace(co_name=function, co_firstlineno=line)
    return TracebackType(following, _C.new_frame(code, {"__name__": "", "__file__": filename}), -1, line)

"""Dead code: nodes and constants that nobody reads."""

from __future__ import annotations

from argand.graph.nodes.meta import eliminate_dead
from argand.graph.nodes.program import AtenProgram


def eliminate_dead_code(program: AtenProgram) -> int:
    """Remove unread nodes (random draws and assertions stay) and the constants that only they named."""
    gone = eliminate_dead(program.graph)
    named = {str(node.target) for node in program.graph.nodes if node.op == "get_attr"}
    named.update(spec.name for spec in program.inputs if spec.kind == "constant")
    for name in [name for name in program.constants if name not in named]:
        del program.constants[name]
    return gone

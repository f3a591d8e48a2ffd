"""Which torch-level nodes, ATen nodes, user lines and kernels belong together, as tables for traces."""

from __future__ import annotations

from typing import Any

from torch import fx

from argand.ir.kernel import KernelPlan, Schedule


def provenance(graph: fx.Graph, schedule: Schedule) -> dict[str, Any]:
    """Tables between the stages of one compiled graph.

    Arguments:
        graph: the ATen graph after all passes.
        schedule: what was made of it.

    Returns:
        "pre_to_post": torch-level node → ATen nodes; "kernels": kernel → its ATen nodes, with their code and user line;
        "extern": calls of ATen's own kernels → the same.
    """
    pre_to_post: dict[str, list[str]] = {}
    for node in graph.nodes:
        source = getattr(node.meta.get("origin"), "source_node", "")
        if source and node.op == "call_function":
            pre_to_post.setdefault(source, []).append(node.name)
    kernels: dict[str, list[dict[str, str]]] = {}
    extern: dict[str, list[dict[str, str]]] = {}
    for step in schedule.steps:
        into = kernels if isinstance(step, KernelPlan) else extern
        name = step.name if isinstance(step, KernelPlan) else str(step.target)
        told = into.setdefault(name, [])
        for origin in step.origins:
            row = {"node": origin.fx_node, "code": origin.fx_code, "user_line": origin.user_line}
            if origin.caller:
                row["caller"] = origin.caller
            if row not in told:
                told.append(row)
    return {"pre_to_post": pre_to_post, "kernels": kernels, "extern": extern}

"""Functions marked with `assume_constant_result`: called once, while capturing, on the real values of arguments."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import CaptureState
from argand.capture.facts.values.symbolic import SYMBOLIC
from argand.errors import GraphBreak, graph_break
from argand.graph.trees import mapped


def call(state: CaptureState, fn: Function, name: str, args: Args, kwargs: Kwargs) -> object:
    """The result as a constant of the graph; what `fn` raises is the program's.

    Raises:
        GraphBreak: the value of an argument is not known before the graph runs.
    """
    if state.graph.entered:
        raise graph_break(
            kind="argument of a function that is called while capturing",
            context=name,
            explanation=f"{name}, marked with assume_constant_result, is called where a device is the default one, or "
            "within a torch-function mode, which it would not see.",
            hints=("Call it outside of the `with` block, or before torch.set_default_device.",),
        )
    values = _Values(state, name)
    with torch._C.DisableTorchFunction():
        real_args = [values.real(arg) for arg in args]
        real_kwargs = {key: values.real(value) for key, value in kwargs.items()}
        result = state.interpreter.native(fn, *real_args, **real_kwargs)
        state.guards.of_process = f"what {name} returned"
        return mapped(result, lambda leaf: state.graph.constant(leaf) if isinstance(leaf, torch.Tensor) else leaf)


class _Values:
    """Real values of what the interpreter handles: those of stand-ins are computed with eager's kernels."""

    def __init__(self, state: CaptureState, name: str) -> None:
        self.state = state
        self.name = name
        self.nodes: dict[fx.Node, object] = {}

    def real(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            info = self.state.graph.tensors.get(id(value))
            return value if info is None else self._computed(info.node)
        if type(value) in SYMBOLIC:
            return value.number()
        if type(value) in (list, tuple):
            return type(value)([self.real(item) for item in self.state.deep_resolve(value)])
        if type(value) is dict:
            return {key: self.real(item) for key, item in self.state.deep_resolve(value).items()}
        return value

    def _computed(self, wanted: fx.Node) -> object:
        """What the graph recorded so far will give."""
        builder = self.state.graph
        if builder.graph is not builder.root or builder.mutated:
            raise self._unknown("the graph writes to tensors before it, or it is called in a function of a function")
        reals = {info.node: info.real for info in builder.inputs}
        todo = [wanted]
        while todo:
            node = todo[-1]
            missing = [other for other in node.all_input_nodes if other not in self.nodes]
            if node in self.nodes or missing:
                todo = todo[:-1] if node in self.nodes else todo + missing
                continue
            todo.pop()
            self.nodes[node] = reals[node] if node in reals else self._run(node)
        return self.nodes[wanted]

    def _run(self, node: fx.Node) -> object:
        builder = self.state.graph
        if node.op == "get_attr":
            return builder.constants[str(node.target)]
        if node in builder.effectful or node.op not in ("call_function", "call_method"):
            raise self._unknown(f"{node.name} draws random numbers, or does more than compute")
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda other: self.nodes[other])
        target: Any = node.target
        try:
            with torch.no_grad():
                if node.op == "call_method":
                    return getattr(args[0], target)(*args[1:], **kwargs)
                return target(*args, **kwargs)
        except Exception as error:
            raise self._unknown(f"{node.name} cannot be computed: {error}") from None

    def _unknown(self, why: str) -> GraphBreak:
        return graph_break(
            kind="argument of a function that is called while capturing",
            context=self.name,
            explanation=f"{self.name}, marked with assume_constant_result, gets a tensor of unknown value: {why}.",
        )

"""Metadata rules for torch's recurrent layers, whose own metadata takes as long as the sequence (see shapes)."""

from __future__ import annotations

from typing import Any

import torch

from argand import errors
from argand.capture.metadata.layouts import needs_grad, new
from argand.capture.metadata.shapes import RULES, Rule
from argand.graph.operators.recurrent import FUNCTIONS, recurrence


def _rule(kind: str) -> Rule:
    def apply(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        call = recurrence(kind, args, kwargs)
        if call is None:
            raise _unusual(kind, "its arguments are not those of torch.nn's layers")
        try:
            sizes = call.result_sizes()
        except ValueError as error:
            raise _unusual(kind, str(error)) from None
        grad = needs_grad(call.input, *call.states, *call.params)
        return tuple([new(size, stride, call.input.dtype, grad) for size, stride in sizes])

    return apply


def _unusual(kind: str, why: str) -> errors.GraphBreak:
    return errors.graph_break(
        kind="recurrent layer of unusual arguments",
        context=f"{kind}: {why}",
        explanation=f"What torch.{kind} does with these arguments is not known without running it ({why}).",
        hints=("Call it as torch.nn's layers do.",),
    )


RULES.update({function: _rule(kind) for function, kind in FUNCTIONS.items()})

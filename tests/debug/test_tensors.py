"""Tensors of trials."""

from __future__ import annotations

import torch

from argand.debug.tensors import named_leaves, tensors_in


def test_tensors_are_found_in_outputs() -> None:
    from transformers.modeling_outputs import BaseModelOutput

    x, y = torch.ones(1), torch.ones(2)
    assert list(tensors_in(BaseModelOutput(last_hidden_state=x, hidden_states=(y,)))) == [x, y]
    assert list(tensors_in([{"a": x}, (y, 3), "text"])) == [x, y]


def test_what_lies_too_deep_is_a_leaf() -> None:
    module = torch.nn.Linear(1, 1)
    value = {"a": [1, (2,)], "b": [], "c": module}
    assert list(named_leaves(value, "x", 2)) == [
        ("x['a'][0]", 1),
        ("x['a'][1]", (2,)),
        ("x['b']", []),
        ("x['c']", module),
    ]

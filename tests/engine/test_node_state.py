"""What nodes hold is read whole, or they are not compiled: compared with what torch's header says that they hold."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import argand
from argand._core.node_layout import node_layout
from argand.engine import backward_calls
from argand.engine.checkpoints import Saved
from argand.engine.node_state import PARTLY_READ, NotRecorded, reader_of, value_fact
from helpers import collected

HEADER = Path(torch.__file__).parent / "include/torch/csrc/autograd/generated/Functions.h"
TOLD_BY_GRADIENTS = {
    "at::ScalarType",
    "at::TensorOptions",
    "torch::autograd::generated::TypeAndSize",
    "at::Layout",
    "::std::vector<at::ScalarType>",
}
"""Types of fields that say of which kind a gradient must be, which the metadata of the node after it says as well."""
COUNTS = re.compile(r"\w+_size_|\w+_released_|retain_variables")
SIZES_OF_CAT = ("CatBackward0", "tensors_args_sizes_symint")  # told but for two tensors without gradients


def untold_fields() -> dict[str, list[str]]:
    """Per node, the fields that no attribute shows."""
    found: dict[str, list[str]] = {}
    for match in re.finditer(r"struct TORCH_API (\w+) : public \w+ \{(.*?)\n\};", HEADER.read_text(), re.DOTALL):
        name, body = match.groups()
        kind = getattr(torch._C._functions, name, None)
        if kind is None:
            continue
        for line in body.split("\n"):
            field = re.match(r"  ([\w:<>, ]+?) (\w+)(?: = [^;]+)?;$", line)
            if field is None or field[1].startswith(("using", "void")) or "(" in line:
                continue
            shown = [f"_saved_{field[2].rstrip('_')}", f"_saved_{field[2].rstrip('_')}_", f"_saved_{field[2]}"]
            if not any(hasattr(kind, one) for one in shown) and field[1] not in TOLD_BY_GRADIENTS:
                if not COUNTS.fullmatch(field[2]) and (name, field[2]) != SIZES_OF_CAT:
                    found.setdefault(name, []).append(field[2])
    return found


def test_nodes_that_do_not_tell_all_are_known() -> None:
    if not HEADER.exists():
        pytest.skip("this torch came without headers")
    untold = untold_fields()
    assert "AsStridedBackward0" in untold
    assert set(untold) <= PARTLY_READ, {name: untold[name] for name in set(untold) - PARTLY_READ}


def test_only_generated_nodes_are_read() -> None:
    x = torch.ones(4, requires_grad=True)
    y = x.exp()
    y[0] = 2
    assert reader_of(type(x.exp().grad_fn)) is not None
    assert type(y.grad_fn).__name__ == "CopySlices" and reader_of(type(y.grad_fn)) is None


@pytest.mark.parametrize("train", [True, False, None])
def test_nodes_of_dropout_are_read_with_what_they_do_not_tell(train: bool | None) -> None:
    x = torch.ones(4, requires_grad=True)
    made = [torch.ops.aten.native_dropout(x, 0.25, one)[0] for one in (train, True, False, None)]
    reader = reader_of(type(made[0].grad_fn))
    assert reader is not None
    facts = [reader.read(one.grad_fn, Saved()) for one in made]
    assert [one == facts[0] for one in facts[1:]] == [one is train for one in (True, False, None)]


def test_values_that_formulas_can_tell_apart_are_two() -> None:
    values = [0, 0.0, -0.0, False, (0,), None, "0", torch.float32]
    assert len({value_fact(value) for value in values}) == len(values)
    assert value_fact(float("nan")) == value_fact(float("nan"))
    with pytest.raises(NotRecorded):
        value_fact(object())


def test_hooks_of_all_kinds_are_seen() -> None:
    layout = node_layout()
    assert layout is not None
    for count in range(3):
        x = torch.ones(2, requires_grad=True)
        made = x.exp() if count else torch.nn.functional.linear(x, torch.ones(2, 2, requires_grad=True))
        node = made.grad_fn
        assert layout.unhooked(node)
        made.retain_grad() if count == 0 else made.register_hook(lambda grad: None)
        assert not layout.unhooked(node)


def test_hooks_of_leaves_are_seen() -> None:
    layout = node_layout()
    assert layout is not None
    plain, leaf = torch.ones(2), torch.ones(2, requires_grad=True)
    assert layout.accumulates_quietly(plain) and layout.accumulates_quietly(leaf)
    leaf.register_hook(lambda grad: None)
    assert layout.accumulates_quietly(leaf) and not layout.hooked_natively(leaf)  # the tensor shows it
    others = replace(layout, leaf=(*layout.leaf[:3], 1))  # takes every hook for one of C++
    assert others.hooked_natively(leaf) and not others.hooked_natively(plain)
    assert not others.accumulates_quietly(leaf)
    node = torch.autograd.graph.get_gradient_edge(leaf).node
    assert layout.accumulates_quietly(leaf)
    node.register_hook(lambda *grads: None)
    assert not layout.accumulates_quietly(leaf)


def test_a_hook_of_cpp_on_a_leaf_is_the_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = node_layout()
    assert layout is not None
    monkeypatch.setattr(backward_calls, "node_layout", lambda: replace(layout, leaf=(*layout.leaf[:3], 1)))
    leaf, seen = torch.ones(2, requires_grad=True), []
    leaf.register_hook(lambda grad: seen.append(grad))
    with collected("fallback") as told, argand.compiled_autograd(backend="eager"):
        for _ in range(3):
            leaf.exp().tanh().sum().backward()
    assert "hook of C++ on a leaf" in told[0].data["reason"] and len(seen) == 3
    with collected("fallback") as told, argand.compiled_autograd(backend="eager"):
        torch.autograd.grad(leaf.exp().tanh().sum(), [leaf])
    assert len(seen) == 4

"""nn.Modules whose parts change between calls: subjects for mutations.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tests.capture.world.mutation_subjects import Subject, item, setting, subject
from torch import nn
from torch.nn.utils import parametrize


def _linear(**kwargs: Any) -> nn.Linear:
    layer = nn.Linear(2, 2, **kwargs)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        if layer.bias is not None:
            layer.bias.fill_(0.5)
    return layer


def _removable(register: Callable[[], Any]) -> tuple[Callable[[], Any], Callable[[], Any]]:
    handles: list[Any] = []
    return lambda: handles.append(register()), lambda: handles.pop().remove()


@subject
def _module() -> Subject:
    class M(nn.Module):
        k = 2.0

        def __init__(self) -> None:
            super().__init__()
            self.layer = _linear()
            self.register_buffer("held", torch.ones(2))
            self.flag = True

        def forward(self, x: Any, scale: Any = 1.0) -> Any:
            y = self.layer(x) * self.k * scale + self.held
            return y * 2 if self.training else y

    m = M()
    was = m.layer
    weight = was.weight
    hooks = (
        ("forward hook", *_removable(lambda: m.register_forward_hook(lambda s, a, o: o + 1))),
        ("forward pre-hook", *_removable(lambda: m.register_forward_pre_hook(lambda s, a: (a[0] * 3,)))),
        ("inner hook", *_removable(lambda: was.register_forward_hook(lambda s, a, o: o + 2))),
        ("backward hook", *_removable(lambda: m.register_full_backward_hook(lambda s, a, o: None))),
        ("global hook", *_removable(lambda: nn.modules.module.register_module_forward_hook(lambda s, a, o: o + 4))),
        (
            "global pre-hook",
            *_removable(lambda: nn.modules.module.register_module_forward_pre_hook(lambda s, a: (a[0] + 5,))),
        ),
    )
    return Subject(
        m,
        ["o(x)", "o.forward(x)", "o.layer(x)", "o.__call__(x)", "x * o.layer.weight[0]", "len(list(o.parameters()))",
         "[n for n, _ in o.named_modules()]", "x + o.held", "sorted(o.state_dict())", "o.training",
         "sum(p.numel() for p in o.parameters() if p.requires_grad)"],
        [*hooks, *setting(m, "k", 3.0), *setting(M, "k", 4.0), *setting(m, "forward", lambda x: x + 6), *setting(m, "__call__", lambda x: x),
         *setting(m, "_call_impl", lambda x: x + 7), *setting(m, "_wrapped_call_impl", lambda x: x + 7.5), *setting(M, "forward", lambda s, x: x + 8),
         *setting(M, "__call__", lambda s, x: x + 9),
         *setting(M, "_call_impl", lambda s, x: x + 10), *setting(M.forward, "__defaults__", (5.0,)),
         ("eval", lambda: m.eval(), lambda: m.train()), *setting(was, "forward", lambda x: x - 1), *setting(was, "_call_impl", lambda x: x - 2),
         ("another layer", lambda: setattr(m, "layer", nn.Identity()), lambda: setattr(m, "layer", was)),
         ("more", lambda: m.add_module("more", _linear()), lambda: delattr(m, "more")),
         ("buffer", lambda: setattr(m, "held", torch.zeros(2)), lambda: setattr(m, "held", torch.ones(2))),
         ("parameter", lambda: setattr(was, "weight", nn.Parameter(torch.eye(2) * 7)), lambda: setattr(was, "weight", weight)),
         ("dtype", lambda: setattr(was, "weight", nn.Parameter(torch.eye(2, dtype=torch.float64))), lambda: setattr(was, "weight", weight)),
         ("strides", lambda: setattr(was, "weight", nn.Parameter(torch.eye(2).t())), lambda: setattr(was, "weight", weight)),
         ("in place", lambda: weight.data.mul_(2), lambda: weight.data.div_(2)),
         ("data", lambda: setattr(weight, "data", torch.eye(2)), lambda: setattr(weight, "data", torch.tensor([[1.0, 2.0], [3.0, 4.0]]))),
         ("frozen", lambda: weight.requires_grad_(False), lambda: weight.requires_grad_(True)),
         ("__class__", lambda: setattr(was, "__class__", type("L2", (nn.Linear,), {"forward": lambda s, x: x})), lambda: setattr(was, "__class__", nn.Linear)),
         ("no bias", lambda: setattr(was, "bias", None), lambda: setattr(was, "bias", nn.Parameter(torch.full((2,), 0.5))))],
    )  # fmt: skip


@subject
def _parametrized_module() -> Subject:
    class Double(nn.Module):
        k = 2.0

        def forward(self, w: Any) -> Any:
            return w * self.k

    layer = _linear()

    def add() -> None:
        parametrize.register_parametrization(layer, "weight", Double())

    def remove() -> None:
        parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)

    return Subject(layer, ["o(x)", "x * o.weight[0]"], [("parametrized", add, remove), *setting(Double, "k", 3.0)])


@subject
def _containers_of_modules() -> Subject:
    layers = nn.ModuleList([_linear(), nn.Identity()])
    table = nn.ModuleDict({"a": _linear(), "b": nn.Identity()})
    numbers = nn.ParameterList([nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2) * 2)])
    named = nn.ParameterDict({"p": nn.Parameter(torch.ones(2))})
    stack = nn.Sequential(nn.Identity(), _linear())
    holder = nn.Module()
    holder.layers, holder.table, holder.numbers, holder.named, holder.stack = layers, table, numbers, named, stack
    first, a, p0, q = layers[0], table["a"], numbers[0], named["p"]
    return Subject(
        holder,
        ["[l(x) for l in o.layers][0]", "x * len(o.layers)", "o.layers[0](x)", "o.table['a'](x)", "sorted(o.table.keys())", "'c' in o.table",
         "x * sum(o.numbers)", "x * o.named['p']", "o.stack(x)", "x * o.numbers[0]", "len(o.stack)"],
        [item(layers, 0, nn.Identity()), ("append", lambda: layers.append(nn.Identity()), lambda: layers.__delitem__(2)), item(table, "a", nn.Identity()),
         ("c", lambda: table.update({"c": nn.Identity()}), lambda: table.pop("c")), item(numbers, 0, nn.Parameter(torch.ones(2) * 5)),
         item(named, "p", nn.Parameter(torch.ones(2) * 6)), ("stack", lambda: stack.append(nn.ReLU()), lambda: stack.pop(2)),
         ("names", lambda: (layers, first, a, p0, q) and None, lambda: None)],
    )  # fmt: skip

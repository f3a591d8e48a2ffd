"""nn.Module: calls, hooks, containers, state."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import argand
from helpers import assert_same

X = torch.randn(2, 4)


class Containers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.named = nn.ModuleDict({"a": nn.Linear(4, 4)})
        self.weights = nn.ParameterList([torch.randn(4) for _ in range(2)])
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = layer(x) * (i + 1)
        for layer in self.layers[1:]:
            x = x + layer(x)
        x = self.layers[-1](x) + self.named["a"](x)
        for weight in self.weights:
            x = x + weight
        self.seen += 1
        return x + self.seen + sum(p.sum() for p in self.parameters()) + len(list(self.named_modules()))


MODULES = {
    "containers": Containers,
    "sequential": lambda: nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)),
    "batch_norm": lambda: nn.Sequential(nn.BatchNorm1d(4), nn.ReLU()),
    "layer_norm": lambda: nn.LayerNorm(4),
    "embedding_bag": lambda: nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1)),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules(name: str) -> None:
    torch.manual_seed(0)
    model = MODULES[name]()
    other = copy.deepcopy(model)
    compiled = argand.compile(model, backend="eager", fullgraph=True)
    for _ in range(3):
        assert_same(other(X), compiled(X))
    assert_same(other.state_dict(), model.state_dict())


def test_attention_and_recurrent() -> None:
    x = torch.randn(2, 3, 8)
    for model, args in (
        (nn.MultiheadAttention(8, 2, batch_first=True), (x, x, x)),
        (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (x,)),
        (nn.LSTM(8, 4, 2, batch_first=True), (x,)),
    ):
        model.eval()
        with torch.no_grad():
            assert_same(model(*args), argand.compile(model, backend="eager")(*args), strides=False)


def test_hooks() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    compiled = argand.compile(model, backend="eager")
    assert_same(model(X), compiled(X))
    handles = [
        model[0].register_forward_hook(lambda module, args, out: out * 2),
        model[0].register_forward_pre_hook(lambda module, args: (args[0] + 1,)),
        model.register_forward_hook(lambda module, args, out: out - 1),
    ]
    assert_same(model(X), compiled(X))
    for handle in handles:
        handle.remove()
    assert_same(model(X), compiled(X))


def test_gradients() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 1))
    other = copy.deepcopy(model)
    argand.compile(model, backend="eager", fullgraph=True)(X).sum().backward()
    other(X).sum().backward()
    for p, q in zip(model.parameters(), other.parameters()):
        assert torch.equal(p.grad, q.grad)


def test_weights_moved() -> None:
    model = nn.Linear(4, 4)
    compiled = argand.compile(model, backend="eager", fullgraph=True)
    compiled(X)
    model.weight.data = torch.randn(4, 4)
    assert_same(model(X), compiled(X))
    model.double()
    assert_same(model(X.double()), compiled(X.double()))


def test_module_made_inside_after_dynamo_was_imported() -> None:
    """torch._dynamo patches nn.Module.__init__ when it is first used; slices of a ModuleList go through it."""
    import torch._dynamo.mutation_guard as mutation_guard

    mutation_guard.install_generation_tagging_init()
    torch.manual_seed(0)
    model = Containers()
    compiled = argand.compile(model, backend="eager", fullgraph=True)
    assert_same(copy.deepcopy(model)(X), compiled(X))


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, pair: dict[str, torch.Tensor], scale: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"sum": self.norm(self.layer(pair["x"])) * scale, "y": pair["y"].cos()}


def test_exported_programs() -> None:
    """What was exported is captured with its checks of the inputs, which raise as eager's."""
    batch = torch.export.Dim("batch", min=2, max=8)

    def inputs(count: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        torch.manual_seed(count)
        return {"x": torch.randn(count, 4), "y": torch.randn(2)}, torch.randn(count, 1)

    sizes = {"pair": {"x": {0: batch}, "y": None}, "scale": {0: batch}}
    exported = torch.export.export(Named(), inputs(3), dynamic_shapes=sizes)
    module, twin = exported.module(), exported.module()
    compiled = argand.compile(module, backend="eager", fullgraph=True)
    for count in (3, 4, 5):
        want, got = twin(*inputs(count)), compiled(*inputs(count))
        assert list(got) == list(want)
        torch.testing.assert_close([*got.values(), *module.buffers()], [*want.values(), *twin.buffers()])
    for call in (twin, compiled):
        with pytest.raises(AssertionError, match="Guard failed"):
            call(*inputs(9))

"""Models whose layers are alike but for one: it does something else, has another argument, or another one looks at it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

WIDTH = 8
COUNT = 10


class Layer(nn.Module):
    """A layer like all others, until somebody changes it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 12), nn.Linear(12, WIDTH)
        self.register_buffer("scale", torch.rand(WIDTH) + 0.5)
        self.register_buffer("seen", torch.zeros(WIDTH))
        self.factor, self.dropped = 0.7, 0.0
        self.then: Callable[[torch.Tensor], torch.Tensor] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.gelu(self.up(self.norm(x))) * self.factor
        y = (self.down(F.dropout(y, self.dropped)) * self.scale).to(x.dtype)
        return x + (y if self.then is None else self.then(y))


class Nearly(nn.Module):
    """Layers between two others; `odd` changes the one at `place`."""

    def __init__(self, odd: str, place: int) -> None:
        super().__init__()
        torch.manual_seed(COUNT + place)
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(COUNT))
        self.shared = nn.Parameter(torch.rand(WIDTH))
        self.place, self.look = place % COUNT, False
        self.seen: list[torch.Tensor] = []
        ODD[odd](self, self.layers[place])  # type: ignore[arg-type]

    def forward(self, x: torch.Tensor) -> Any:
        x, between = self.first(x), None
        for number, layer in enumerate(self.layers):
            x = layer(x)
            if number == self.place:
                between = x
        x = self.last(x)
        return (x, between) if self.look else x


def _set(name: str, value: Any) -> Callable[[Nearly, Layer], None]:
    return lambda model, layer: setattr(layer, name, value)


def _then(function: Callable[[Nearly, torch.Tensor], torch.Tensor]) -> Callable[[Nearly, Layer], None]:
    return lambda model, layer: setattr(layer, "then", lambda y: function(model, y))


def _all(change: Callable[[Nearly, Layer], None]) -> Callable[[Nearly, Layer], None]:
    """What is done to all layers."""

    def changed(model: Nearly, _: Layer) -> None:
        for layer in model.layers:
            change(model, layer)  # type: ignore[arg-type]

    return changed


def _frozen(model: Nearly, layer: Layer) -> None:
    layer.up.weight.requires_grad_(False)


def _trained(model: Nearly, layer: Layer) -> None:
    scale = layer.scale.clone()
    del layer.scale
    layer.scale = nn.Parameter(scale)


def _shared_with_the_next(model: Nearly, layer: Layer) -> None:
    layer.up = model.layers[(model.place + 1) % COUNT].up


def _transposed(model: Nearly, layer: Layer) -> None:
    layer.up.weight = nn.Parameter(layer.up.weight.detach().t().contiguous().t())


def _a_part(model: Nearly, layer: Layer) -> None:
    layer.scale = torch.rand(WIDTH + 3)[3:]


def _of_one_memory(model: Nearly, layer: Layer) -> None:
    memory = torch.rand(COUNT * WIDTH)
    for number, one in enumerate(model.layers):
        one.scale = memory[number * WIDTH : (number + 1) * WIDTH]


def _hook(model: Nearly, layer: Layer) -> None:
    layer.up.register_forward_hook(lambda module, args, result: result * 1.5)


def _gradient_hook(model: Nearly, layer: Layer) -> None:
    layer.up.weight.register_hook(lambda grad: grad * 2)


def _no_bias(model: Nearly, layer: Layer) -> None:
    layer.up = nn.Linear(WIDTH, 12, bias=False)


def _wider(model: Nearly, layer: Layer) -> None:
    layer.up, layer.down = nn.Linear(WIDTH, 13), nn.Linear(13, WIDTH)


def _writes(model: Nearly, y: torch.Tensor) -> torch.Tensor:
    return y + model.layers[model.place].seen.add_(0.125)


def _counts(model: Nearly, y: torch.Tensor) -> torch.Tensor:
    return y + model.layers[0].seen.add_(0.125)


def _without_gradient(model: Nearly, y: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return y * 2


def _keeps(model: Nearly, y: torch.Tensor) -> torch.Tensor:
    model.seen[:] = [y.detach()]
    return y


ODD: dict[str, Callable[[Nearly, Layer], None]] = {
    "nothing": lambda model, layer: None,
    "a constant": _set("factor", 0.25),
    "an integer for a float": _set("factor", 1),
    "a negative zero": _set("factor", -0.0),
    "dropout": _set("dropped", 0.5),
    "dropout in all": _all(_set("dropped", 0.5)),
    "a dtype": lambda model, layer: setattr(layer, "scale", layer.scale.double()),
    "a dtype on the way": _then(lambda model, y: y.double().float()),
    "no bias": _no_bias,
    "a width": _wider,
    "a layout": _transposed,
    "a part of a tensor": _a_part,
    "parts of one memory": _of_one_memory,
    "a frozen weight": _frozen,
    "frozen weights": _all(_frozen),
    "a buffer that is a parameter": _trained,
    "a weight of two layers": _shared_with_the_next,
    "a weight of all": _all(_then(lambda model, y: y * model.shared)),
    "a weight of all in one": _then(lambda model, y: y * model.shared),
    "a forward hook": _hook,
    "a hook of a gradient": _gradient_hook,
    "hooks of gradients": _all(_gradient_hook),
    "an operation": _then(lambda model, y: y.sin()),
    "an operation and its inverse": _then(lambda model, y: y.neg().neg()),
    "detached": _then(lambda model, y: y.detach()),
    "detached in all": _all(_then(lambda model, y: y + y.detach())),
    "no gradient": _then(_without_gradient),
    "a write to its buffer": _then(_writes),
    "writes to the first buffer": _all(_then(_counts)),
    "a result": lambda model, layer: setattr(model, "look", True),
    "a tensor that is kept": _then(_keeps),
    "the neighbour's buffer": _then(lambda model, y: y * model.layers[model.place - 1].scale),
    "a buffer of the first": _all(_then(lambda model, y: y * model.layers[0].scale)),
    "another module": lambda model, layer: model.layers.__setitem__(model.place, nn.Linear(WIDTH, WIDTH)),
}
PLACES = (0, 1, 2, 3, 5, -3, -2, -1)

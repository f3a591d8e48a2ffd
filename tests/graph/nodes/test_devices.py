"""Which devices a graph's tensors are on, found without running it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx, nn

from argand.graph.nodes.devices import devices_of


class Held(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2, device="meta")
        self.register_buffer("scale", torch.ones(2, device="meta"))

    def forward(self, x: Any) -> Any:
        return self.layer(x) if x is None else x * self.scale


class Layered(Held):
    def forward(self, x: Any) -> Any:
        return self.layer(x)


PROGRAMS: dict[str, tuple[Any, Any, set[str]]] = {
    "plain": (lambda x: x + 1, torch.ones(2), {"cpu"}),
    "input": (lambda x: x + 1, torch.ones(2, device="meta"), {"meta"}),
    "factory": (lambda x: (x, torch.zeros(3, device="meta")), torch.ones(2), {"cpu", "meta"}),
    "factory by object": (lambda x: (x, torch.zeros(3, device=torch.device("meta"))), torch.ones(2), {"cpu", "meta"}),
    "to": (lambda x: x.to("meta"), torch.ones(2), {"cpu", "meta"}),
    "to an index": (lambda x: x.to("cuda:1"), torch.ones(2), {"cpu", "cuda"}),
    "cuda": (lambda x: x.cuda(), torch.ones(2), {"cpu", "cuda"}),
    "buffer": (Held(), torch.ones(2), {"cpu", "meta"}),
    "layer": (Layered(), torch.ones(2), {"cpu", "meta"}),
    "other texts": (lambda x: torch.einsum("i,i->i", x, x).flatten(), torch.ones(2), {"cpu"}),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_devices_of(name: str) -> None:
    fn, x, expected = PROGRAMS[name]
    assert devices_of(fx.symbolic_trace(fn), [x]) == expected


def test_autocast_names_a_device_of_no_tensor() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    entered = graph.call_function(torch.amp.autocast_mode._enter_autocast, ("cuda", torch.float16, False, True))
    result = graph.call_function(torch.sin, (x,))
    graph.call_function(torch.amp.autocast_mode._exit_autocast, (entered,))
    graph.output(result)
    assert devices_of(fx.GraphModule({}, graph), [torch.ones(2)]) == {"cpu"}

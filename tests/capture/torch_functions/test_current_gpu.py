"""Which GPU `device="cuda"` means is asked for again in each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

import argand

MAKES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "constructor": lambda x: torch.zeros(3, device=torch.device("cuda")),
    "to": lambda x: x.to("cuda"),
    "method": lambda x: x.cuda(),
    "behind others": lambda x: (x + 1).cuda() * 2,
}


@pytest.mark.parametrize("kind", MAKES)
def test_another_current_gpu_is_another_graph(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    current, graphs = [0], []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])

    def backend(graph: fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return lambda *args: (torch.full((3,), float(current[0])),)  # there is no GPU here

    compiled = argand.compile(MAKES[kind], backend=backend)
    for gpu, known in ((0, 1), (0, 1), (1, 2), (1, 2), (0, 2)):
        current[0] = gpu
        compiled(torch.ones(3))
        assert len(graphs) == known


def test_graphs_of_the_cpu_ask_for_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> int:
        raise AssertionError("asked for a GPU")

    monkeypatch.setattr(torch.cuda, "current_device", none)
    assert argand.compile(lambda x: x.to("cpu") + torch.ones(3), backend="eager")(torch.ones(3)).sum() == 6

"""Programs whose parameters are taken for constants: a later process prepares them, and captures nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import argand
from outcomes.processes import STORED, Program

FROZEN = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.image = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU())
        self.first, self.last = torch.nn.Linear(8, 64), torch.nn.Linear(64, 64)

    def forward(self, x):
        return self.last(self.first(self.image(x).mean((2, 3))).relu())

def check(compile):
    torch.manual_seed(0)
    net, x = Net().eval(), torch.randn(2, 3, 9, 9)
    compiled = compile(net, options=OPTIONS)
    with torch.no_grad():
        for change in range(12):  # more often than a program that a compiler can make anew goes along with
            got, want = compiled(x), net(x)
            assert (got - want).norm() < (0.02 if "quantization" in OPTIONS else 1e-5) * want.norm()
            net.first.weight.mul_(1.5)
            net.image[0].weight.data = torch.randn(8, 3, 3, 3)
"""


@pytest.fixture(params=["freezing", "quantization", "both"])
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Program]:
    options = {"freezing": True, "quantization": "int8_dynamic"}
    asked = options if request.param == "both" else {request.param: options[request.param]}
    with argand.config.patch(cache_dir=str(tmp_path / "cache"), **STORED):
        yield Program(tmp_path, f"OPTIONS = {asked}\n{FROZEN}")


def test_a_later_process_prepares_parameters_and_captures_nothing(program: Program) -> None:
    assert program.run() == ["stored"], program.reasons
    assert program.run() == ["hit"], program.reasons

"""The deep dive's example: a data-dependent branch makes three graphs; shows graphs, bytecode and guards.

python examples/toy_example.py
"""

import torch

import argand
from argand import events


def my_compiler(gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]):
    print("my_compiler() called with FX graph:")
    for node in gm.graph.nodes:
        print(f"  {node.op:14s} {node.name:12s} {node.target!s:52.52s} {node.args}")
    return gm.forward


@argand.compile(backend=my_compiler)
def toy_example(a, b):
    x = a / (torch.abs(a) + 1)
    if b.sum() < 0:
        b = b * -1
    return x * b


def show(event: events.Event) -> None:
    if event.name in ("bytecode", "guards"):
        print(f"--- {event.name} [{event.compile_id}]\n{event.text()}\n")


if __name__ == "__main__":
    events.bus.subscribe(show)
    torch.manual_seed(0)
    for _ in range(100):
        toy_example(torch.randn(10), torch.randn(10))

"""Models and layers of PyG that the other programs leave out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from library_programs.program import Compile, Program, Step, training_step


def _graph() -> tuple[Any, Any, Any]:
    import torch

    edges = torch.randint(0, 12, (2, 40))
    return torch.randn(12, 8), edges, torch.randint(0, 3, (12,))


def graph_network(name: str, **options: Any) -> Any:
    """Steps of one of PyG's basic models."""

    def make(compile: Compile) -> Step:
        import torch
        import torch_geometric.nn as geometric

        x, edges, labels = _graph()
        if name == "PNA":
            options["deg"] = torch.tensor([1, 4, 4, 3])
        model = getattr(geometric, name)(8, 16, 2, 3, **options)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        call = compile(model)
        return training_step(lambda: torch.nn.functional.cross_entropy(call(x, edges), labels), optimizer)

    return make


def graph_module(build: Callable[[], Any], call_with: Callable[[Any], Any]) -> Any:
    def make(compile: Compile) -> Step:
        import torch

        model = build()
        call = compile(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        step_inputs = call_with(torch)
        return training_step(lambda: call(*step_inputs).square().mean(), optimizer)

    return make


def schnet() -> Any:
    import torch
    from torch_geometric.nn import SchNet

    class Pairs(torch.nn.Module):  # torch-cluster, which finds neighbours, is not needed then
        def forward(self, pos: Any, batch: Any) -> Any:
            index = (batch[:, None] == batch).fill_diagonal_(False).nonzero().t()
            return index, (pos[index[0]] - pos[index[1]]).norm(dim=-1)

    model = SchNet(hidden_channels=16, num_filters=16, num_interactions=2, num_gaussians=8)
    model.interaction_graph = Pairs()
    return model


def gps() -> Any:
    import torch
    from torch_geometric.nn import GINConv, GPSConv

    layer = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    return GPSConv(8, GINConv(layer), heads=2)


def relational() -> Any:
    from torch_geometric.nn import RGCNConv

    return RGCNConv(8, 8, num_relations=3)


def hetero(compile: Compile) -> Step:
    import torch
    from torch_geometric.nn import HeteroConv, SAGEConv

    kinds = [("user", "rates", "item"), ("item", "of", "user")]
    layer = HeteroConv({kind: SAGEConv((8, 8), 8) for kind in kinds}, aggr="sum")
    call = compile(layer)
    x = {"user": torch.randn(6, 8), "item": torch.randn(7, 8)}
    edges = {kind: torch.randint(0, 6, (2, 20)) for kind in kinds}
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)

    def loss_of() -> torch.Tensor:
        return sum(each.square().mean() for each in call(x, edges).values())

    return training_step(loss_of, optimizer)


def aggregations(compile: Compile) -> Step:
    import torch
    from torch_geometric.nn import (
        AttentionalAggregation,
        GraphNorm,
        MultiAggregation,
        Set2Set,
        SoftmaxAggregation,
        global_add_pool,
        global_max_pool,
    )
    from torch_geometric.utils import degree, softmax, to_dense_adj, to_dense_batch

    x, edges, _ = _graph()
    batch = torch.arange(12) // 4
    many = MultiAggregation(["mean", "std", "max", SoftmaxAggregation(learn=True)])
    gate, recurrent, norm = AttentionalAggregation(torch.nn.Linear(8, 1)), Set2Set(8, 2), GraphNorm(8)
    modules = torch.nn.ModuleList([many, gate, recurrent, norm])

    def pooled(x: torch.Tensor, edges: torch.Tensor, batch: torch.Tensor) -> Any:
        x = norm(x, batch)
        parts = [many(x, batch), gate(x, batch), recurrent(x, batch), global_add_pool(x, batch)]
        loss = torch.cat([*parts, global_max_pool(x, batch)], -1).square().mean()
        dense, mask = to_dense_batch(x, batch, batch_size=3, max_num_nodes=5)
        weights = softmax(x[:, 0], batch)
        adjacency = to_dense_adj(edges, max_num_nodes=12)
        return loss, dense, mask, weights, adjacency, degree(edges[0], 12)

    call = compile(pooled)
    return training_step(lambda: call(x, edges, batch), torch.optim.SGD(modules.parameters(), lr=0.01))


PROGRAMS = {
    "PyG GraphSAGE training": Program("torch-geometric", graph_network("GraphSAGE", norm="batch_norm", jk="cat")),
    "PyG GIN training": Program("torch-geometric", graph_network("GIN")),
    "PyG PNA training": Program(
        "torch-geometric",
        graph_network("PNA", aggregators=["mean", "max"], scalers=["identity", "amplification"]),
    ),
    "PyG SchNet": Program(
        "torch-geometric",
        graph_module(schnet, lambda t: (t.tensor([6, 1, 1, 8, 1, 6]), t.randn(6, 3), t.tensor([0, 0, 0, 0, 1, 1]))),
    ),
    "PyG GPSConv training": Program(
        "torch-geometric",
        graph_module(gps, lambda t: (t.randn(12, 8), t.randint(0, 12, (2, 30)), t.arange(12) // 4)),
    ),
    "PyG RGCNConv training": Program(
        "torch-geometric",
        graph_module(relational, lambda t: (t.randn(12, 8), t.randint(0, 12, (2, 30)), t.randint(0, 3, (30,)))),
    ),
    "PyG HeteroConv training": Program("torch-geometric", hetero),
    "PyG aggregations": Program("torch-geometric", aggregations),
}  # fmt: skip

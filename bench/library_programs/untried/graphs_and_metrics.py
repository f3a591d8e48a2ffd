"""Layers of PyG, metrics, optimizers and attributions that the other programs leave out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from library_programs.program import Compile, Program, Step, training_step


def first_of(out: Any) -> Any:
    return (out[0] if isinstance(out, tuple) else out).square().mean()


def more_layers(compile: Compile) -> Step:
    """Several convolutions of PyG in one function."""
    import torch
    import torch_geometric.nn as g

    kinds = [
        g.APPNP(3, 0.1), g.TAGConv(8, 8), g.SGConv(8, 8, K=2), g.GatedGraphConv(8, 2), g.ResGatedGraphConv(8, 8),
        g.LEConv(8, 8), g.GENConv(8, 8), g.ClusterGCNConv(8, 8), g.FiLMConv(8, 8), g.MFConv(8, 8),
        g.EGConv(8, 8, num_heads=2, num_bases=2), g.EdgeConv(g.MLP([16, 8, 8])), g.FAConv(8), g.AntiSymmetricConv(8),
        g.GraphConv(8, 8, aggr="max"),
    ]  # fmt: skip
    layers = torch.nn.ModuleList(kinds)
    edges = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 2], [1, 2, 3, 4, 5, 0, 3, 5]])
    x = torch.randn(6, 8)

    def forward(x: Any, edges: Any) -> Any:
        h = x
        for layer in layers:
            h = torch.tanh(layer(h, x, edges) if isinstance(layer, g.FAConv) else layer(h, edges))
        return h

    call = compile(forward)
    return training_step(lambda: call(x, edges).square().mean(), layers, gradients=True)


def graph_readouts(compile: Compile) -> Step:
    """Pools and normalizations of PyG."""
    import torch
    import torch_geometric.nn as g

    norms = torch.nn.ModuleList(
        [g.GraphNorm(8), g.PairNorm(), g.DiffGroupNorm(8, 2), g.InstanceNorm(8), g.MessageNorm(True)]
    )
    pools = torch.nn.ModuleList([g.SAGPooling(8, 0.5), g.ASAPooling(8, 0.5)])
    readouts = torch.nn.ModuleList(
        [g.Set2Set(8, 2), g.aggr.AttentionalAggregation(torch.nn.Linear(8, 1)), g.aggr.SoftmaxAggregation(learn=True)]
    )
    edges = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 2], [1, 2, 0, 4, 5, 3, 1, 0]])
    x, batch = torch.randn(6, 8), torch.tensor([0, 0, 0, 1, 1, 1])

    def forward(x: Any) -> Any:
        h = norms[0](x, batch) + norms[1](x, batch) + norms[2](x) + norms[3](x, batch)
        h = norms[4](h, x)
        found = [readout(h, batch) for readout in readouts]
        for pool in pools:
            out = pool(h, edges, batch=batch)
            found.append(out[0])
        return found

    call = compile(forward)

    def step() -> Any:
        found = call(x)
        sum(each.sum() for each in found).backward()
        return found

    return step


def graph_models(name: str) -> Any:
    def make(compile: Compile) -> Step:
        import torch
        import torch_geometric.nn as g

        edges = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 2], [1, 2, 0, 4, 5, 3, 1, 0]])
        x, batch = torch.randn(6, 8), torch.tensor([0, 0, 0, 1, 1, 1])
        if name == "VGAE":

            class Encoder(torch.nn.Module):
                def __init__(self) -> None:
                    super().__init__()
                    self.mean, self.spread = g.GCNConv(8, 4), g.GCNConv(8, 4)

                def forward(self, x: Any, edges: Any) -> Any:
                    return self.mean(x, edges), self.spread(x, edges)

            model = g.VGAE(Encoder())
            call = compile(lambda x, e: model.recon_loss(model.encode(x, e), e) + model.kl_loss() / 6)
            return training_step(lambda: call(x, edges), model)
        if name == "DGI":
            model = g.DeepGraphInfomax(
                8, g.GCNConv(8, 8), lambda z, *_: z.mean(0).sigmoid(), lambda x, e: (x[torch.randperm(6)], e)
            )
            call = compile(model)
            return training_step(lambda: model.loss(*call(x, edges)), model)
        if name == "AttentiveFP":
            model = g.AttentiveFP(8, 8, 2, 3, 2, 2)
            call, features = compile(model), torch.randn(8, 3)
            return training_step(lambda: call(x, edges, features, batch).square().mean(), model)
        if name == "LightGCN":
            model = g.LightGCN(6, 8, 2)
            call = compile(model)
            return training_step(lambda: call(edges).square().mean(), model)
        if name == "TransE":
            model = g.TransE(6, 2, 8)
            call, relation = compile(model.loss), torch.randint(0, 2, (8,))
            return training_step(lambda: call(edges[0], relation, edges[1]), model)
        if name == "dense pooling":
            adjacency = torch.rand(2, 6, 6)
            conv, assign = g.DenseGCNConv(8, 8), torch.nn.Linear(8, 3)

            def forward(x: Any) -> Any:
                h = conv(x, adjacency)
                a = g.dense_diff_pool(h, adjacency, assign(h))
                b = g.dense_mincut_pool(h, adjacency, assign(h))
                return a[0].sum() + a[2] + a[3] + b[0].sum() + b[2] + b[3]

            call, dense = compile(forward), torch.randn(2, 6, 8)
            return training_step(lambda: call(dense), conv)
        model = g.HGTConv({"a": 8, "b": 8}, 8, (["a", "b"], [("a", "to", "b"), ("b", "to", "a")]), heads=2)
        call = compile(model)
        return training_step(
            lambda: sum(
                v.square().mean()
                for v in call({"a": x, "b": x + 1}, {("a", "to", "b"): edges, ("b", "to", "a"): edges.flip(0)}).values()
            ),
            model,
        )

    return make


def gathered_metrics(build: Callable[[Any], Any], inputs: Callable[[Any], tuple[Any, ...]]) -> Any:
    """A metric that is updated by each step and computed."""

    def make(compile: Compile) -> Step:
        import torch
        import torchmetrics

        metric = build(torchmetrics)

        def update(*batch: Any) -> Any:
            metric.update(*batch)
            return metric.compute()

        call = compile(update)
        return lambda: call(*inputs(torch))

    return make


def classified(torch: Any) -> Any:
    return torch.randn(12, 4).softmax(-1), torch.randint(0, 4, (12,))


def optimizing(build: Callable[[Any, Any], Any], closure: bool = False) -> Any:
    """Steps of a library's optimizer, compiled."""

    def make(compile: Compile) -> Step:
        import torch

        module = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
        optimizer = build(module, torch)
        x = torch.randn(4, 6)

        def loss() -> Any:
            optimizer.zero_grad()
            value = module(x).square().mean()
            value.backward()
            return value

        call = compile(optimizer.step)

        def step() -> Any:
            if closure:
                call(loss)
            else:
                loss()
                call()
            return [p.detach().clone() for p in module.parameters()]

        return step

    return make


def of_pytorch_optimizer(name: str, **options: Any) -> Any:
    def build(module: Any, torch: Any) -> Any:
        import pytorch_optimizer

        return getattr(pytorch_optimizer, name)(module.parameters(), lr=1e-2, **options)

    return optimizing(build)


def attributions(name: str, layer: bool = False, **options: Any) -> Any:
    def make(compile: Compile) -> Step:
        import captum.attr
        import torch

        model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
        method = getattr(captum.attr, name)(*([model, model[0]] if layer else [model]))
        call, x = (
            compile(
                lambda x: method.attribute(
                    x, target=1, **{k: (v(torch) if callable(v) else v) for k, v in options.items()}
                )
            ),
            torch.randn(4, 6),
        )
        return lambda: call(x)

    return make


def noised(compile: Compile) -> Step:
    import captum.attr
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
    tunnel = captum.attr.NoiseTunnel(captum.attr.Saliency(model))
    call, x = compile(lambda x: tunnel.attribute(x, nt_samples=3, target=0)), torch.randn(4, 6)
    return lambda: call(x)


def class_maps(compile: Compile) -> Step:
    import torch
    from pytorch_grad_cam import GradCAMPlusPlus
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(8, 3),
    ).eval()
    cam = GradCAMPlusPlus(model=model, target_layers=[model[0]])
    call = compile(lambda x: cam(input_tensor=x, targets=[ClassifierOutputTarget(1)]))
    return lambda: torch.from_numpy(call(torch.randn(1, 3, 12, 12)))


def attributions_plain(compile: Compile, name: str) -> Step:
    import captum.attr
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
    method = getattr(captum.attr, name)(model, model[0])
    call, x = compile(lambda x: method.attribute(x)), torch.randn(4, 6)
    return lambda: call(x)


PROGRAMS: dict[str, Program] = {
    "PyG fifteen layers training": Program("torch-geometric", more_layers),
    "PyG readouts": Program("torch-geometric", graph_readouts),
    **{
        f"PyG {name}": Program("torch-geometric", graph_models(name))
        for name in ("VGAE", "DGI", "AttentiveFP", "LightGCN", "TransE", "dense pooling", "HGTConv")
    },
    "torchmetrics AUROC": Program(
        "torchmetrics", gathered_metrics(lambda m: m.AUROC("multiclass", num_classes=4), classified), steps=4
    ),
    "torchmetrics calibration": Program(
        "torchmetrics", gathered_metrics(lambda m: m.CalibrationError("multiclass", num_classes=4), classified), steps=4
    ),
    "torchmetrics collection of scores": Program(
        "torchmetrics",
        gathered_metrics(
            lambda m: m.MetricCollection(
                [
                    m.F1Score("multiclass", num_classes=4),
                    m.CohenKappa("multiclass", num_classes=4),
                    m.MatthewsCorrCoef("multiclass", num_classes=4),
                    m.ConfusionMatrix("multiclass", num_classes=4),
                    m.Specificity("multiclass", num_classes=4),
                ]
            ),
            classified,
        ),
        steps=4,
    ),
    "torchmetrics retrieval": Program(
        "torchmetrics",
        gathered_metrics(
            lambda m: m.retrieval.RetrievalNormalizedDCG(),
            lambda t: (t.rand(8), t.randint(0, 2, (8,)), t.tensor([0, 0, 0, 0, 1, 1, 1, 1])),
        ),
        steps=4,
    ),
    "torchmetrics perplexity": Program(
        "torchmetrics",
        gathered_metrics(lambda m: m.text.Perplexity(), lambda t: (t.randn(2, 6, 8), t.randint(0, 8, (2, 6)))),
        steps=4,
    ),
    "torchmetrics sound": Program(
        "torchmetrics",
        gathered_metrics(
            lambda m: m.MetricCollection([m.audio.ScaleInvariantSignalDistortionRatio(), m.audio.SignalNoiseRatio()]),
            lambda t: (t.randn(2, 100), t.randn(2, 100)),
        ),
        steps=4,
    ),
    "torchmetrics running mean": Program(
        "torchmetrics",
        gathered_metrics(lambda m: m.wrappers.Running(m.SumMetric(), window=2), lambda t: (t.randn(3),)),
        steps=4,
    ),
    "torchmetrics Pearson and Spearman": Program(
        "torchmetrics",
        gathered_metrics(
            lambda m: m.MetricCollection(
                [m.PearsonCorrCoef(), m.SpearmanCorrCoef(), m.R2Score(), m.KendallRankCorrCoef()]
            ),
            lambda t: (t.randn(10), t.randn(10)),
        ),
        steps=4,
    ),
    **{
        f"pytorch-optimizer {name} steps": Program("pytorch-optimizer", of_pytorch_optimizer(name), steps=4)
        for name in (
            "Adan",
            "SOAP",
            "CAME",
            "Tiger",
            "MADGRAD",
            "AdaBelief",
            "DAdaptAdam",
            "GrokFastAdamW",
            "ADOPT",
            "MARS",
        )
    },
    "torch LBFGS steps": Program(
        "torch", optimizing(lambda m, t: t.optim.LBFGS(m.parameters(), max_iter=3), closure=True), steps=4
    ),
    "captum LayerConductance": Program("captum", attributions("LayerConductance", layer=True, n_steps=4)),
    "captum LayerActivation": Program("captum", lambda compile: attributions_plain(compile, "LayerActivation")),
    "captum GradientShap": Program(
        "captum", attributions("GradientShap", baselines=lambda t: t.zeros(3, 6), n_samples=2)
    ),
    "captum Occlusion": Program("captum", attributions("Occlusion", sliding_window_shapes=(2,))),
    "captum ShapleyValueSampling": Program("captum", attributions("ShapleyValueSampling", n_samples=2)),
    "captum GuidedBackprop": Program("captum", attributions("GuidedBackprop")),
    "captum LRP": Program("captum", attributions("LRP")),
    "captum KernelShap": Program("captum", attributions("KernelShap", n_samples=8)),
    "captum NoiseTunnel": Program("captum", noised),
    "GradCAM++": Program("grad-cam", class_maps),
}

"""Packages that fewer people use, and other parts of those that many use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from library_programs.program import Compile, Program, Step, inference_step, training_step


def trained(build: Callable[[Any], tuple[Any, tuple[Any, ...]]], loss: Callable[[Any], Any] | None = None) -> Any:
    """Training of a module: `build(torch)` gives it and its inputs."""

    def make(compile: Compile) -> Step:
        import torch

        module, inputs = build(torch)
        call = compile(module)
        measure = loss or (lambda out: out.square().mean())
        return training_step(lambda: measure(call(*inputs)), module, gradients=True)

    return make


def computed(build: Callable[[Any], tuple[Callable[..., Any], tuple[Any, ...]]]) -> Any:
    """A function without gradients: `build(torch)` gives it and its arguments."""

    def make(compile: Compile) -> Step:
        import torch

        function, inputs = build(torch)
        call = compile(function)
        return inference_step(lambda: call(*inputs))

    return make


def poses(torch: Any) -> Any:
    import pypose as pp

    turns = pp.randn_SO3(5)
    rigid = pp.randn_SE3(5)
    points = torch.randn(5, 3)

    def move(points: Any) -> Any:
        moved = turns.Act(points) + rigid.Act(points)
        return moved, turns.Log().tensor(), (turns @ turns.Inv()).tensor()

    return move, (points,)


def energies(torch: Any) -> Any:
    import torchani

    model = torchani.AEVComputer.like_1x() if hasattr(torchani.AEVComputer, "like_1x") else None
    species = torch.tensor([[1, 0, 0, 0, 0]])
    places = torch.tensor([[[0.03, 0.006, 0.01], [-0.83, 0.39, -0.26], [-0.66, -0.84, 0.20], [0.45, 0.54, 0.81],
                            [0.61, -0.17, -0.83]]])  # fmt: skip
    return (lambda places: model(species, places)), (places,)


def jacobian_descent(compile: Compile) -> Step:
    import torch
    from torchjd.aggregation import MGDA

    aggregate = MGDA()
    call = compile(lambda matrix: aggregate(matrix))
    matrix = torch.randn(3, 6)
    return inference_step(lambda: call(matrix))


def memory_mlp(torch: Any) -> Any:
    from titans_pytorch import MemoryMLP

    return MemoryMLP(8, 2), (torch.randn(2, 5, 8),)


def neural_memory(torch: Any) -> Any:
    from titans_pytorch import NeuralMemory

    return NeuralMemory(dim=16, chunk_size=4), (torch.randn(1, 16, 16),)


def spectrograms(torch: Any) -> Any:
    from nnAudio.features import MelSpectrogram

    return MelSpectrogram(sr=2000, n_fft=64, n_mels=16, hop_length=32, verbose=False), (torch.randn(2, 500),)


def constant_q(torch: Any) -> Any:
    from nnAudio.features import CQT1992v2

    return CQT1992v2(sr=4000, fmin=110, n_bins=24, verbose=False), (torch.randn(1, 4000),)


def product_keys(torch: Any) -> Any:
    from product_key_memory import PKM

    return PKM(dim=16, heads=2, num_keys=8, topk=4, dim_head=8), (torch.randn(2, 6, 16),)


def conditional_transformer(torch: Any) -> Any:
    from colt5_attention import ConditionalRoutedFeedForward

    layer = ConditionalRoutedFeedForward(16, num_heavy_tokens=4, light_ff_mult=0.5, heavy_ff_mult=2)
    return layer, (torch.randn(2, 8, 16),)


def einx_operations(torch: Any) -> Any:
    import einx

    def combine(x: Any, w: Any) -> Any:
        y = einx.dot("b [c], [c] d -> b d", x, w)
        return einx.sum("b [d]", y), einx.rearrange("(a c) d -> a c d", y, a=2), einx.softmax("b [d]", y)

    return combine, (torch.randn(4, 3), torch.randn(3, 5))


def older_optimizers(name: str) -> Any:
    def make(compile: Compile) -> Step:
        import torch
        import torch_optimizer

        module = torch.nn.Linear(6, 3)
        optimizer = getattr(torch_optimizer, name)(module.parameters(), lr=0.01)
        call, x = compile(optimizer.step), torch.randn(4, 6)

        def step() -> Any:
            optimizer.zero_grad()
            module(x).square().mean().backward()
            call()
            return [p.detach().clone() for p in module.parameters()]

        return step

    return make


def axial_positions(torch: Any) -> Any:
    from axial_positional_embedding import AxialPositionalEmbedding

    return AxialPositionalEmbedding(dim=16, axial_shape=(4, 4)), (torch.randn(2, 16, 16),)


def factorized_linear(torch: Any) -> Any:
    import tltorch

    layer = tltorch.FactorizedLinear((2, 3), (3, 2), rank=0.5, factorization="cp")
    return layer, (torch.randn(4, 6),)


def scans(torch: Any) -> Any:
    from assoc_scan import AssocScan

    return (lambda g, x: AssocScan()(g, x)), (torch.rand(2, 9, 3), torch.randn(2, 9, 3))


def sampling(name: str, **options: Any) -> Any:
    def make(compile: Compile) -> Step:
        import diffusers
        import torch

        scheduler = getattr(diffusers, name)(num_train_timesteps=50, **options)
        net = torch.nn.Conv2d(2, 2, 3, padding=1)

        def sample(x: Any) -> Any:
            for t in scheduler.timesteps:
                given = scheduler.scale_model_input(x, t)
                x = scheduler.step(net(given), t, x, return_dict=False)[0]
            return x

        call = compile(sample)

        def step() -> Any:
            scheduler.set_timesteps(4)
            with torch.no_grad():
                return call(torch.randn(1, 2, 8, 8) * float(scheduler.init_noise_sigma))

        return step

    return make


def array_features(compile: Compile) -> Step:
    """Features that numpy computes of a tensor, for a network."""
    import numpy as np
    import torch

    net = torch.nn.Linear(6, 3)

    def score(signal: Any) -> Any:
        array = signal.numpy()
        spectrum = np.abs(np.fft.rfft(array, axis=-1))
        smooth = np.convolve(array[0], np.hanning(5), mode="same")
        edges = np.quantile(spectrum, [0.1, 0.5, 0.9], axis=-1).T
        steps = np.gradient(array, axis=-1)[:, :2]
        column = np.interp(array[:, :1], [-2.0, 0.0, 2.0], [0.0, 1.0, 0.5])
        features = np.concatenate([edges, steps, column], axis=1).astype(np.float32)
        return net(torch.from_numpy(features)) + float(len(smooth))

    call = compile(score)
    return inference_step(lambda: call(torch.randn(4, 32)))


def graph_layers(name: str, **options: Any) -> Any:
    def build(torch: Any) -> Any:
        import torch_geometric.nn as layers

        edges = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 2], [1, 2, 3, 4, 5, 0, 3, 5]])
        return getattr(layers, name)(8, 4, **options), (torch.randn(6, 8), edges)

    return trained(build, lambda out: (out[0] if isinstance(out, tuple) else out).square().mean())


PROGRAMS: dict[str, Program] = {
    "pypose groups": Program("pypose", computed(poses)),
    "torchani environments": Program("torchani", computed(energies)),
    "torchjd aggregation": Program("torchjd", jacobian_descent),
    "titans memory MLP": Program("titans-pytorch", computed(memory_mlp)),
    "titans neural memory": Program("titans-pytorch", trained(neural_memory, lambda out: out[0].square().mean())),
    "nnAudio mel spectrogram": Program("nnaudio", computed(spectrograms)),
    "nnAudio constant Q": Program("nnaudio", computed(constant_q)),
    "product-key memory training": Program("product_key_memory", trained(product_keys)),
    "CoLT5 feed-forward training": Program("CoLT5-attention", trained(conditional_transformer)),
    "einx operations": Program("einx", computed(einx_operations)),
    "torch-optimizer Yogi steps": Program("torch-optimizer", older_optimizers("Yogi")),
    "torch-optimizer NovoGrad steps": Program("torch-optimizer", older_optimizers("NovoGrad")),
    "axial positions training": Program("axial_positional_embedding", trained(axial_positions)),
    "tensorly-torch linear training": Program("tensorly-torch", trained(factorized_linear)),
    "assoc-scan": Program("assoc-scan", computed(scans)),
    "diffusers IPNDM": Program("diffusers", sampling("IPNDMScheduler")),
    "diffusers SA solver": Program("diffusers", sampling("SASolverScheduler")),
    "diffusers TCD": Program("diffusers", sampling("TCDScheduler")),
    "diffusers KDPM2 ancestral": Program("diffusers", sampling("KDPM2AncestralDiscreteScheduler")),
    "diffusers Heun, Karras sigmas": Program("diffusers", sampling("HeunDiscreteScheduler", use_karras_sigmas=True)),
    "numpy features": Program("numpy", array_features),
    "PyG SAGEConv of largest training": Program("torch-geometric", graph_layers("SAGEConv", aggr="max")),
    "PyG ARMAConv training": Program("torch-geometric", graph_layers("ARMAConv")),
    "PyG SuperGATConv training": Program("torch-geometric", graph_layers("SuperGATConv")),
    "PyG GraphUNet training": Program("torch-geometric", graph_layers("GraphUNet", out_channels=4, depth=2)),
}

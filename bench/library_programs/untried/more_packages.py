"""Click models, flows, transport, curvature, minimisers, and what else no other program is over."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from library_programs.program import Compile, Program, Step, inference_step


def _steps(loss_of: Callable[[], Any], optimizer: Any) -> Step:
    def step() -> Any:
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _trained(model: Any, loss: Callable[[Any], Any], compile: Compile) -> Step:
    """A model that is compiled whole, and a loss that a function computes of the compiled one."""
    import torch

    optimizer, call = torch.optim.AdamW(model.parameters(), lr=1e-3), compile(model)
    return _steps(lambda: loss(call), optimizer)


def click_model(name: str) -> Any:
    def make(compile: Compile) -> Step:
        import torch
        from deepctr_torch import models
        from deepctr_torch.inputs import DenseFeat, SparseFeat

        sparse = [SparseFeat(f"c{i}", 7, embedding_dim=4) for i in range(3)]
        features = [*sparse, *(DenseFeat(f"d{i}", 1) for i in range(2))]
        model = getattr(models, name)(features, features, dnn_hidden_units=(8,), device="cpu")
        x = torch.cat([torch.randint(0, 7, (6, 3)).float(), torch.rand(6, 2)], 1)
        y = torch.randint(0, 2, (6, 1)).float()
        return _trained(model, lambda call: torch.nn.functional.binary_cross_entropy(call(x), y), compile)

    return make


def sinkhorn_divergence(compile: Compile) -> Step:
    import torch
    from geomloss import SamplesLoss

    x, y = torch.randn(12, 3, requires_grad=True), torch.randn(15, 3)
    call = compile(SamplesLoss("sinkhorn", p=2, blur=0.3, backend="tensorized"))
    return lambda: torch.autograd.grad(call(x, y), x)


def optimal_transport(compile: Compile) -> Step:
    import ot
    import torch

    x, y = torch.randn(8, 2, requires_grad=True), torch.randn(9, 2)

    def loss(x: Any, y: Any) -> Any:
        cost = ot.dist(x, y)
        weights = torch.full((8,), 1 / 8), torch.full((9,), 1 / 9)
        plan = ot.bregman.sinkhorn(*weights, cost / cost.max(), 0.5, numItermax=20)
        return (plan * cost).sum() + ot.sliced_wasserstein_distance(x, y, n_projections=5, seed=1)

    call = compile(loss)

    def step() -> Any:
        value = call(x, y)
        return [value.detach(), *torch.autograd.grad(value, x)]

    return step


def invertible_network(compile: Compile) -> Step:
    import torch
    from FrEIA import framework, modules

    def subnet(size: int, out: int) -> Any:
        return torch.nn.Sequential(torch.nn.Linear(size, 8), torch.nn.ReLU(), torch.nn.Linear(8, out))

    model = framework.SequenceINN(4)
    for _ in range(2):
        model.append(modules.AllInOneBlock, subnet_constructor=subnet, permute_soft=True)
        model.append(modules.GLOWCouplingBlock, subnet_constructor=subnet)
    x = torch.randn(6, 4)

    def loss(call: Any) -> Any:
        z, volume = call(x)
        return z.square().sum() - volume.sum()

    return _trained(model, loss, compile)


def of_package(package: str, name: str, inputs: Callable[[Any], Any], **options: Any) -> Any:
    def make(compile: Compile) -> Step:
        import torch

        model = getattr(importlib.import_module(package), name)(**options)
        given = inputs(torch)
        return _trained(model, lambda call: call(given).float().square().mean(), compile)

    return make


def diffusion_samples(compile: Compile) -> Step:
    from denoising_diffusion_pytorch import GaussianDiffusion, Unet

    net = Unet(dim=8, dim_mults=(1, 2), flash_attn=False)
    model = GaussianDiffusion(net, image_size=8, timesteps=6, sampling_timesteps=3)
    return inference_step(compile(lambda: model.sample(batch_size=1)))


def averaged_lion(compile: Compile) -> Step:
    """A whole step: backward, Lion, and the average of the weights."""
    import torch
    from ema_pytorch import EMA
    from lion_pytorch import Lion

    model = torch.nn.Linear(4, 2)
    ema = EMA(model, beta=0.9, update_every=2, update_after_step=1)
    optimizer = Lion(model.parameters(), lr=1e-3)
    x = torch.randn(4, 4)

    def whole() -> Any:
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        ema.update()
        return loss.detach(), ema(x).detach()

    return compile(whole)


def bounded_steps(compile: Compile) -> Step:
    """A whole step: backward, a clipped norm, SGD, bounded weights, and the average of the weights."""
    import torch
    from torch_ema import ExponentialMovingAverage

    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    ema = ExponentialMovingAverage(model.parameters(), decay=0.9)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(4, 4)

    def whole() -> Any:
        loss = model(x).square().sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for p in model.parameters():
                p.data = p.data.clamp(-0.5, 0.5)
        ema.update()
        with ema.average_parameters():
            value = model(x).detach()
        return loss.detach(), value

    return compile(whole)


def spiking_network(compile: Compile) -> Step:
    import torch
    from spikingjelly.activation_based import functional, layer, neuron

    model = torch.nn.Sequential(layer.Linear(4, 8), neuron.LIFNode(), layer.Linear(8, 2), neuron.ParametricLIFNode())
    functional.set_step_mode(model, "m")
    x = torch.rand(5, 3, 4)

    def run(x: Any) -> Any:
        functional.reset_net(model)
        return model(x).mean(0).sum()

    call = compile(run)
    return _steps(lambda: call(x), torch.optim.SGD(model.parameters(), lr=0.1))


def pruned_resnet(compile: Compile) -> Step:
    import torch
    import torch_pruning as tp
    import torchvision

    model = torchvision.models.resnet18(num_classes=4)
    importance = tp.importance.MagnitudeImportance()
    image = torch.randn(1, 3, 32, 32)
    tp.pruner.MagnitudePruner(model, image, importance, pruning_ratio=0.5, ignored_layers=[model.fc]).step()
    x = torch.randn(2, 3, 32, 32)
    return _trained(model, lambda call: call(x).square().sum(), compile)


def rotations(compile: Compile) -> Step:
    import roma
    import torch

    def work(x: Any, v: Any) -> Any:
        q = roma.rotvec_to_unitquat(v)
        distance = roma.rotmat_geodesic_distance(roma.unitquat_to_rotmat(q), roma.special_procrustes(x))
        return distance.sum() + roma.utils.unitquat_slerp(q, q.flip(0), torch.rand(3)).sum()

    call = compile(work)
    x, v = torch.randn(4, 3, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    return lambda: torch.autograd.grad(call(x, v), [x, v])


def minimised(method: str) -> Any:
    def make(compile: Compile) -> Step:
        import torch
        from torchmin import minimize

        def rosenbrock(x: Any) -> Any:
            return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()

        call = compile(lambda x: minimize(rosenbrock, x, method=method, max_iter=4).x)
        return lambda: call(torch.rand(4))

    return make


def curvature_products(compile: Compile) -> Step:
    import torch
    from curvlinops import GGNLinearOperator, HessianLinearOperator

    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    data = [(torch.randn(5, 3), torch.randn(5, 2))]
    given = model, torch.nn.MSELoss(), list(model.parameters()), data
    hessian, ggn = (each(*given, check_deterministic=False) for each in (HessianLinearOperator, GGNLinearOperator))
    v = torch.randn(hessian.shape[0])
    call = compile(lambda v: (hessian @ v, ggn @ v))
    return lambda: [each.detach() for each in call(v)]


_TOKENS = {"num_tokens": 10, "dim": 16, "depth": 2}

PROGRAMS = {
    **{
        f"deepctr {name}": Program("deepctr-torch", click_model(name))
        for name in ("DeepFM", "xDeepFM", "DCN", "AutoInt", "NFM", "FiBiNET", "ONN")
    },
    "geomloss Sinkhorn divergence": Program("geomloss", sinkhorn_divergence),
    "POT losses": Program("pot", optimal_transport),
    "FrEIA flow training": Program("FrEIA", invertible_network),
    "g-mlp training": Program(
        "g-mlp-pytorch",
        of_package("g_mlp_pytorch", "gMLP", lambda t: t.randint(0, 10, (2, 8)), seq_len=8, **_TOKENS),
    ),
    "mlp-mixer training": Program(
        "mlp-mixer-pytorch",
        of_package(
            "mlp_mixer_pytorch", "MLPMixer", lambda t: t.randn(2, 3, 16, 16),
            image_size=16, channels=3, patch_size=8, dim=16, depth=2, num_classes=3,
        ),
    ),
    "hierarchical transformer training": Program(
        "h-transformer-1d",
        of_package(
            "h_transformer_1d", "HTransformer1D", lambda t: t.randint(0, 10, (1, 32)),
            heads=2, dim_head=8, max_seq_len=32, block_size=8, causal=False, **_TOKENS,
        ),
    ),
    "linear attention training": Program(
        "linear-attention-transformer",
        of_package(
            "linear_attention_transformer", "LinearAttentionTransformerLM", lambda t: t.randint(0, 10, (1, 32)),
            heads=2, max_seq_len=32, causal=True, blindspot_size=8, **_TOKENS,
        ),
    ),
    "denoising diffusion samples": Program("denoising-diffusion-pytorch", diffusion_samples),
    "ema-pytorch and Lion steps": Program("ema-pytorch", averaged_lion, steps=5),
    "torch-ema and bounded steps": Program("torch-ema", bounded_steps, steps=4),
    "spikingjelly training": Program("spikingjelly", spiking_network),
    "pruned ResNet training": Program("torch-pruning", pruned_resnet),
    "roma rotations": Program("roma", rotations),
    **{f"torchmin {name}": Program("pytorch-minimize", minimised(name)) for name in ("bfgs", "newton-cg", "cg")},
    "curvlinops products": Program("curvlinops-for-pytorch", curvature_products),
}  # fmt: skip

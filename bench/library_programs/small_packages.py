"""Small packages that models are put together from: attention, normalizers, averages of weights, tensors, trainers."""

from __future__ import annotations

from typing import Any

from library_programs.program import Compile, Program, Step
from library_programs.smaller_libraries import compiled_optimizer, training


def normalizers(compile: Compile) -> Step:
    import torch
    from entmax import SparsemaxLoss, entmax15, entmax_bisect, sparsemax

    layer, loss, target = torch.nn.Linear(6, 8), SparsemaxLoss(), torch.randint(0, 8, (4,))

    def forward(x: torch.Tensor) -> torch.Tensor:
        scores = layer(x)
        spread = [sparsemax(scores, dim=-1), entmax15(scores, dim=-1), entmax_bisect(scores, 1.3)]
        return sum(each.square().sum() for each in spread) + loss(scores, target).sum()

    return training(layer, compile(forward), (torch.randn(4, 6),), lambda total: total)


def local_transformer(compile: Compile) -> Step:
    import torch
    from local_attention.transformer import LocalTransformer

    sizes = {"dim": 16, "depth": 1, "max_seq_len": 32, "local_attn_window_size": 4, "dim_head": 8, "heads": 2}
    model = LocalTransformer(num_tokens=20, **sizes)
    return training(model, compile(model), (torch.randint(0, 20, (2, 16)),), lambda out: out.square().mean())


def averaged_weights(compile: Compile) -> Step:
    import torch
    from ema_pytorch import EMA

    layer = torch.nn.Linear(4, 4)
    average, optimizer = EMA(layer, beta=0.99, update_after_step=1, update_every=2), torch.optim.SGD(layer.parameters())
    update = compile(average.update)

    def step() -> list[torch.Tensor]:
        layer(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        update()
        return [p.detach().clone() for p in average.ema_model.parameters()]

    return step


def several_streams(compile: Compile) -> Step:
    import torch
    from hyper_connections import get_init_and_expand_reduce_stream_functions

    connect, expand, reduce = get_init_and_expand_reduce_stream_functions(2)
    branch = connect(dim=8, branch=torch.nn.Linear(8, 8))
    call = compile(lambda x: reduce(branch(expand(x))))
    return training(branch, call, (torch.randn(2, 5, 8),), lambda out: out.square().mean())


def decomposition(compile: Compile) -> Step:
    import tensorly
    import torch
    from tensorly.decomposition import parafac

    tensorly.set_backend("pytorch")
    x = torch.randn(3, 4, 5)
    call = compile(lambda x: parafac(x, rank=2, n_iter_max=3, init="svd", tol=0).factors)
    return lambda: call(x)


def unfolded(compile: Compile) -> Step:
    import torch
    import unfoldNd

    layer, unfold = torch.nn.Linear(4, 4), unfoldNd.UnfoldNd(kernel_size=2, stride=2)
    inputs = (torch.randn(1, 2, 4, 4),)
    return training(layer, compile(lambda x: unfold(layer(x))), inputs, lambda out: out.square().mean())


def gradients_of_samples(compile: Compile) -> Step:
    import torch
    from backpack import backpack, extend
    from backpack.extensions import BatchGrad, Variance

    model = extend(torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3)))
    loss_of, call = extend(torch.nn.CrossEntropyLoss()), compile(model)
    x, target = torch.randn(6, 4), torch.randint(0, 3, (6,))

    def step() -> Any:
        model.zero_grad()
        loss = loss_of(call(x), target)
        with backpack(BatchGrad(), Variance()):
            loss.backward()
        return loss.detach(), [p.grad_batch.clone() for p in model.parameters()]

    return step


def diffusion(compile: Compile) -> Step:
    import torch
    from denoising_diffusion_pytorch import GaussianDiffusion1D, Unet1D

    model = GaussianDiffusion1D(Unet1D(dim=8, dim_mults=(1, 2), channels=3), seq_length=16, timesteps=10)
    return training(model, compile(model), (torch.rand(2, 3, 16),), lambda loss: loss)


def accelerated(compile: Compile) -> Step:
    import torch
    from accelerate import Accelerator
    from torch.utils.data import DataLoader, TensorDataset

    accelerator = Accelerator(cpu=True)
    model = compile(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    loader = DataLoader(TensorDataset(torch.randn(8, 4), torch.randn(8, 1)), batch_size=4)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)

    def step() -> list[torch.Tensor]:
        losses = []
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.mse_loss(model(x), y)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            losses.append(loss.detach())
        return losses

    return step


def lion(parameters: Any) -> Any:
    from lion_pytorch import Lion

    return Lion(parameters, lr=1e-2, weight_decay=1e-2)


def annotated(compile: Compile) -> Step:
    import torch
    from jaxtyping import jaxtyped

    layer = torch.nn.Linear(4, 4)
    call = compile(jaxtyped(typechecker=None)(lambda x: layer(x)))
    return training(layer, call, (torch.randn(3, 4),), lambda out: out.square().mean())


def contraction(compile: Compile) -> Step:
    import opt_einsum
    import torch

    a, b = torch.randn(3, 4, requires_grad=True), torch.randn(4, 4)
    call = compile(lambda a, b: opt_einsum.contract("ij,jk,kl->il", a, b, b))

    def step() -> tuple[torch.Tensor, ...]:
        product = call(a, b)
        return product.detach(), *torch.autograd.grad(product.sum(), a)

    return step


PROGRAMS = {
    "entmax normalizers and loss": Program("entmax", normalizers),
    "local-attention transformer training": Program("local-attention", local_transformer),
    "ema-pytorch update": Program("ema-pytorch", averaged_weights, steps=4, timed=False),
    "hyper-connections training": Program("hyper-connections", several_streams),
    "tensorly PARAFAC": Program("tensorly", decomposition),
    "unfoldNd": Program("unfoldNd", unfolded),
    "BackPACK per-sample gradients": Program("backpack-for-pytorch", gradients_of_samples),
    "denoising-diffusion training": Program("denoising-diffusion-pytorch", diffusion, fast=False),
    "accelerate training": Program("accelerate", accelerated),
    "Lion steps": Program("lion-pytorch", compiled_optimizer(lion), steps=5),
    "jaxtyping function": Program("jaxtyping", annotated),
    "opt_einsum contraction": Program("opt-einsum", contraction),
}

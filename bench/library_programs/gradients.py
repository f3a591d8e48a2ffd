"""Libraries about gradients: opacus, captum, higher, functorch-style torch.func, BackPACK's kin."""

from __future__ import annotations

from library_programs.program import Compile, Program, Step


def opacus_per_sample(compile: Compile) -> Step:
    import torch
    from opacus import GradSampleModule

    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(4 * 36, 10)
    )
    wrapped = GradSampleModule(model)
    images, labels = torch.randn(6, 1, 8, 8), torch.randint(0, 10, (6,))
    call = compile(wrapped)

    def step() -> list[torch.Tensor]:
        wrapped.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(call(images), labels)
        loss.backward()
        return [loss.detach(), *(p.grad_sample for p in wrapped.parameters())]

    return step


def captum_integrated_gradients(compile: Compile) -> Step:
    import torch
    from captum.attr import IntegratedGradients

    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3)).eval()
    inputs = torch.randn(4, 8)
    attribute = compile(IntegratedGradients(model).attribute)
    return lambda: attribute(inputs, target=1, n_steps=10)


def captum_saliency(compile: Compile) -> Step:
    import torch
    from captum.attr import Saliency

    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)).eval()
    inputs = torch.randn(4, 8)
    attribute = compile(Saliency(model).attribute)
    return lambda: attribute(inputs, target=torch.tensor([0, 1, 2, 1]))


def higher_inner_loop(compile: Compile) -> Step:
    import higher
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(8, 4), torch.randn(8, 1)

    def loss_of(fmodel: torch.nn.Module) -> torch.Tensor:
        return (fmodel(x) - y).square().mean()

    call = compile(loss_of)

    def step() -> list[torch.Tensor]:
        model.zero_grad()
        with higher.innerloop_ctx(model, inner) as (fmodel, optimizer):
            for _ in range(2):
                optimizer.step(call(fmodel))
            call(fmodel).backward()
        return [p.grad for p in model.parameters()]

    return step


def functional_per_sample(compile: Compile) -> Step:
    import torch
    from torch.func import functional_call, grad, hessian, vmap

    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    params = {name: p.detach() for name, p in model.named_parameters()}
    x, y = torch.randn(6, 4), torch.randn(6, 1)

    def loss(params: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (functional_call(model, params, (x.unsqueeze(0),)) - y).square().mean()

    def forward() -> list[object]:
        curvature = hessian(lambda point: functional_call(model, params, (point,)).sum())(x[0])
        return [vmap(grad(loss), in_dims=(None, 0, 0))(params, x, y), curvature]

    return compile(forward)


PROGRAMS = {
    "opacus GradSampleModule": Program("opacus", opacus_per_sample),
    "captum IntegratedGradients": Program("captum", captum_integrated_gradients),
    "captum Saliency": Program("captum", captum_saliency),
    # not fast: it differentiates a backward, which "native" refuses
    "higher inner loop": Program("higher", higher_inner_loop, fast=False),
    "torch.func per-sample gradients": Program("torch", functional_per_sample),
}

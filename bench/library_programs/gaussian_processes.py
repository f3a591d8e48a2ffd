"""GPyTorch, BoTorch and linear_operator."""

from __future__ import annotations

from library_programs.program import Compile, Program, Step


def exact_gp_training(compile: Compile) -> Step:
    import gpytorch
    import torch

    class GP(gpytorch.models.ExactGP):
        def __init__(self, x: torch.Tensor, y: torch.Tensor, likelihood: gpytorch.likelihoods.Likelihood) -> None:
            super().__init__(x, y, likelihood)
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    x = torch.linspace(0, 1, 40)
    y = torch.sin(6 * x) + 0.1 * torch.randn(40)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = GP(x, y, likelihood)
    model.train()
    likelihood.train()
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = -mll(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return compile(step)


def log_ei(compile: Compile) -> Step:
    import torch
    from botorch.acquisition import LogExpectedImprovement
    from botorch.models import SingleTaskGP

    x = torch.rand(12, 2, dtype=torch.float64)
    y = torch.sin(x.sum(-1, keepdim=True) * 3)
    model = SingleTaskGP(x, y)
    model.eval()
    acquisition = LogExpectedImprovement(model, best_f=y.max())
    candidates = torch.rand(5, 1, 2, dtype=torch.float64)
    call = compile(acquisition)

    def step() -> list[torch.Tensor]:
        points = candidates.clone().requires_grad_()
        value = call(points)
        value.sum().backward()
        return [value.detach(), points.grad]

    return step


def linear_operators(compile: Compile) -> Step:
    import torch
    from linear_operator.operators import DenseLinearOperator, DiagLinearOperator

    root = torch.randn(20, 20)
    right = torch.randn(20, 3)

    def step() -> list[torch.Tensor]:
        kernel = DenseLinearOperator(root @ root.mT / 20).add_diagonal(torch.ones(20))
        total = kernel + DiagLinearOperator(torch.full((20,), 0.5))
        return [total.solve(right), total.logdet(), (total @ right).sum()]

    return compile(step)


PROGRAMS = {
    "GPyTorch ExactGP training": Program("gpytorch", exact_gp_training, steps=5),
    "BoTorch LogEI": Program("botorch", log_ei),
    "linear_operator solve and logdet": Program("linear-operator", linear_operators),
}

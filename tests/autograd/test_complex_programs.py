"""Programs over complex numbers: values, gradients, lazy bits and shared memory as in eager, each in one graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils import _pytree as pytree

import argand

Tensor = torch.Tensor
W = torch.randn(4, 4, dtype=torch.complex128, generator=torch.Generator().manual_seed(1))


def _written_parts(x: Tensor, t: Tensor) -> Tensor:
    z = torch.complex(x, t)
    z.real.mul_(2)
    z.imag.add_(1)
    return z


def _written_conjugate(x: Tensor, t: Tensor) -> Tensor:
    z = torch.complex(x, t).clone()
    z.conj().mul_(2j)
    z[0] = x[0] * 1j
    return z.conj_physical_()


def _resolved(x: Tensor, t: Tensor) -> Any:
    z = torch.complex(x, t)
    lazy = z.conj()
    return lazy, lazy.resolve_conj(), lazy.resolve_neg(), z.resolve_conj(), lazy.imag, lazy.imag.resolve_neg()


def _of(function: Callable[[Tensor, Tensor, Tensor], Any]) -> Callable[[Tensor, Tensor], Any]:
    return lambda x, t: function(torch.complex(x, t), x, t)


PROGRAMS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "parts": _of(lambda z, x, t: (z.real * 2, z.imag + x, torch.view_as_real(z * 2))),
    "conjugates": _of(lambda z, x, t: (z.conj(), z.conj() @ torch.complex(t, x).T, z.mH, -z.conj(), z.conj().is_conj())),
    "one conjugate": _of(lambda z, x, t: ((z * 2).mH, (x * 2).conj(), torch._neg_view(t * 2)[1:])),
    "gradients that are conjugates": _of(lambda z, x, t: ((z * 2).conj(), (z * 2j).conj().imag, (z.real * 3)._neg_view())),
    "resolved": _resolved,
    "views": _of(lambda z, x, t: (z.conj().clone(), z.conj().view(-1), z.conj()[0], z.conj().T.real, z.conj().imag)),
    "made of parts": lambda x, t: (torch.view_as_complex(torch.stack([x, t], -1)) * 1j, torch.polar(x.abs(), t)),
    "written parts": _written_parts,
    "written conjugate": _written_conjugate,
    "size and angle": _of(lambda z, x, t: (z.abs(), z.angle(), z.sgn(), torch.linalg.norm(z))),
    "transforms": _of(lambda z, x, t: (torch.fft.fft(x), torch.fft.irfft(torch.fft.rfft(x) * z[:, :3]), torch.fft.fft2(z))),
    "functions": _of(lambda z, x, t: (z.exp(), z.log(), z.sqrt(), z**2, z**1.5, z.tanh(), z.reciprocal(), 1 / z.conj())),
    "with real numbers": _of(lambda z, x, t: (z * x + 2j, x * 1j, x + z, z / (t + 2j), z.mean(0), z.prod(1))),
    "choices": _of(lambda z, x, t: (torch.where(x > 0, z, z.conj()), torch.cat([z, x.to(z.dtype), z.conj()]), z == z.conj())),
    "types": _of(lambda z, x, t: (z.to(torch.complex64), x.cdouble(), z.conj().cfloat(), torch.is_complex(x * 1j))),
    "matrices": _of(lambda z, x, t: (torch.linalg.inv(z[:, :3] + 3 * torch.eye(3)), torch.linalg.det(z[:, 1:]))),
    "products": _of(lambda z, x, t: (torch.einsum("ij,kj->ik", z, z.conj()), torch.vdot(z[0], z[1]), functional.linear(z, W))),
    "running": _of(lambda z, x, t: (z.cumsum(0), z.cumprod(1), z.diff(), z.flip(0), z.roll(1, 0))),
    "gradient": lambda x, t: torch.func.grad(lambda a: torch.complex(a, t).exp().abs().sum())(x),
}  # fmt: skip


def outcome(program: Callable[[Tensor, Tensor], Any], grad: bool) -> Any:
    generator = torch.Generator().manual_seed(3)
    x, t = (torch.randn(3, 4, dtype=torch.float64, generator=generator).requires_grad_(grad) for _ in range(2))
    results = pytree.tree_leaves(program(x, t))
    tensors = [y for y in results if isinstance(y, Tensor)]
    bits = [
        (y.is_conj(), y.is_neg(), y.requires_grad, [y.data_ptr() == z.data_ptr() for z in tensors]) for y in tensors
    ]
    differentiable = [y for y in tensors if y.requires_grad]
    if differentiable:
        torch.stack([(y * (0.3 + 0.7j)).real.square().sum() for y in differentiable]).sum().backward()
    plain = [y.detach().resolve_conj().resolve_neg() if isinstance(y, Tensor) else y for y in results]
    return plain, bits, x.grad, t.grad


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name: str) -> None:
    program = PROGRAMS[name]
    for backend, grad in (("eager", False), ("eager", True), ("aot_eager", False), ("aot_eager", True)):
        compiled = argand.compile(program, backend=backend, fullgraph=True)
        got, eager = outcome(compiled, grad), outcome(program, grad)
        torch.testing.assert_close(got, eager, rtol=1e-9, atol=1e-10, equal_nan=True)


def test_compiled() -> None:
    names = "resolved", "views", "written parts", "gradients that are conjugates", "one conjugate"
    for name, dynamic in zip(names, (None, None, None, None, True)):
        compiled = argand.compile(PROGRAMS[name], fullgraph=True, dynamic=dynamic)
        got, eager = outcome(compiled, True), outcome(PROGRAMS[name], True)
        torch.testing.assert_close(got, eager, rtol=1e-9, atol=1e-10)

"""Programs that write to parameters and results between a compiled forward and its backward, most of them unseen by
autograd.

Eager's backward reads what eager kept: values as they were, some parameters and results as they are by then. So must a
compiled one.
"""

# mypy: ignore-errors
from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import argand
from helpers import assert_same


def P(*s):
    return nn.Parameter(torch.randn(*s))


class LayerNormed(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln = nn.LayerNorm(16)
        self.a = nn.Linear(16, 32)
        self.b = nn.Linear(32, 16)

    def forward(self, x):
        return self.b(F.gelu(self.a(self.ln(x)))).sin()


class BatchNormed(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Conv2d(3, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.d = nn.Conv2d(4, 4, 1)

    def forward(self, x):
        return self.d(F.relu(self.bn(self.c(x)))).exp().mean()


class Biased(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = P(16, 16)
        self.b = P(16)
        self.g = P(1)

    def forward(self, x):
        return (F.gelu(x @ self.w + self.b) * self.g.sigmoid()).tanh()


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = P(16, 16)
        self.s = P(16)

    def forward(self, x):
        return torch.relu((self.w * 2 + self.s) @ x.t()).sin() + (self.s * 3).relu().exp().sum()


class RootMeanSquare(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = P(16)
        self.l = nn.Linear(16, 16)

    def forward(self, x):
        return self.l(x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-05) * self.w).relu() * x


class LargeWeight(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = P(200, 200)

    def forward(self, x):
        w = torch.tanh(self.w * 0.5)
        return (x.repeat(1, 13)[:, :200] @ w.relu()).sin()


class LargeWeightRead(nn.Module):
    """Eager's backward reads the weight itself, and what was made of it."""

    def __init__(self):
        super().__init__()
        self.w = P(200, 200)

    def forward(self, x):
        return ((self.w.sin() * x.sum()).cos() * self.w.view(-1)[:200].exp().sin()).sigmoid()


class WeightNormed(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.utils.parametrizations.weight_norm(nn.Linear(16, 16))

    def forward(self, x):
        return self.l(x).sigmoid()


class ReadTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = P(4, 16)
        self.t = P(16)

    def forward(self, x):
        return ((x[:, None] * self.a.exp() + self.t.view(1, 1, 16)).sigmoid() * self.a).sum(1).cos()


class Embedded(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(10, 16)
        self.p = P(1, 8, 16)
        self.ln = nn.LayerNorm(16)
        self.l = nn.Linear(16, 10)

    def forward(self, x):
        return F.log_softmax(self.l(self.ln(self.e(torch.arange(8)[None]) * 4 + self.p) + x[:1, None]), -1)


def added_to_data(p):
    p.data.add_(1.0)


def multiplied_detached(p):
    p.detach().mul_(1.5)


def data_replaced(p):
    p.data = p.data * 1.5


def foreach_of_data(p):
    torch._foreach_add_([p.data], 0.7)


def copied_into_data(p):
    p.data.copy_(torch.ones_like(p))


def written_under_no_grad(p):
    with torch.no_grad():
        p.add_(0.5)


def storage_set(p):
    p.data.set_(p.data.clone() * 2)


def data_replaced_under_no_grad(p):
    with torch.no_grad():
        p.data = p.data - 0.3


MODELS = [
    LayerNormed,
    BatchNormed,
    Biased,
    Scaled,
    RootMeanSquare,
    LargeWeight,
    LargeWeightRead,
    WeightNormed,
    ReadTwice,
    Embedded,
]
WRITERS = [added_to_data, multiplied_detached, storage_set, data_replaced_under_no_grad, data_replaced, foreach_of_data,
           copied_into_data, written_under_no_grad]  # fmt: skip


def gradients_or_refusal(result: torch.Tensor, *leaves: torch.Tensor) -> list[Any]:
    """What the backward gives, or that it raises, and whether for what was written to."""
    try:
        result.sum().backward()
        return [leaf.grad for leaf in leaves]
    except RuntimeError as error:
        return ["modified by an inplace operation" in str(error)]


def gradients(model: nn.Module, call: Any, x: torch.Tensor, write: Any, which: list[int]) -> list[Any]:
    x = x.clone().requires_grad_()
    parameters = list(model.parameters())
    before = [p.data.clone() for p in parameters]
    y = call(x)
    for i in which:
        write(parameters[i])
    found = gradients_or_refusal(y, x, *parameters)
    for p, value in zip(parameters, before):
        p.data, p.grad = value, None
    return found


@pytest.mark.parametrize(
    ("model", "backend"),
    [*[(model, "aot_eager") for model in MODELS], (LayerNormed, "native"), (BatchNormed, "native"), (Biased, "native")],
)
def test_gradients_read_what_eager_keeps(model: type[nn.Module], backend: str) -> None:
    torch.manual_seed(0)
    made = model().double()  # so that rounding hides nothing
    x = torch.randn(2, 3, 8, 8) if model is BatchNormed else torch.randn(4, 16)
    x = x.double()
    if model is BatchNormed:
        made.bn.momentum = 0.0
    compiled = argand.compile(made, backend=backend)
    count = len(list(made.parameters()))
    for write in WRITERS:
        for which in [*[[i] for i in range(count)], list(range(count))]:
            assert_same(gradients(made, made, x, write, which), gradients(made, compiled, x, write, which))


def product_first(x, y):
    h = x * y
    return h, h.sin() * y


def saved_result_first(x, y):
    h = (x * y).exp()
    return h, h.sin() * h


def view_first(x, y):
    h = x * y
    return h.view(-1), h.sin() * y


def its_view_read(x, y):
    h = x * y
    return h, h.t().sin().exp() * y


def mask_first(x, y):
    h = (x > 0).to(x.dtype)
    return h, (x * h).sin() * y


def part_first(x, y):
    h = x * y
    a = h[:10]
    return a, a.sin().exp() * h[10:20].cos() + y[:10]


def views_of_a_mask_read(x, y):
    h = (x > 0).to(x.dtype)
    return h, h.view(-1).view(h.shape) * y.exp()


def behind_a_break(x, y):
    h = x * y
    out = h.sin() * y
    print(end="")
    h.data = h.data * 2
    return h, out


RESULTS = [
    product_first, saved_result_first, view_first, its_view_read, mask_first, part_first, behind_a_break,
    views_of_a_mask_read,
]  # fmt: skip
RESULT_WRITERS = [data_replaced, added_to_data, multiplied_detached, written_under_no_grad, storage_set]


@pytest.mark.parametrize(("backend", "size"), [("aot_eager", 20), ("aot_eager", 200), ("native", 200)])
def test_gradients_read_results_as_they_are_by_then(backend: str, size: int) -> None:
    """Small and large: what eager saved of a result is never made again of other values, nor the other way."""
    for f in RESULTS:
        for dynamic in (False, True) if backend == "aot_eager" else (False,):
            compiled = argand.compile(f, backend=backend, dynamic=dynamic)
            for write in RESULT_WRITERS[f is part_first :]:  # whose data is set of a view is not seen
                got = []
                for call in (f, compiled):
                    x, y = (
                        torch.linspace(-n, 1, size * size).double().view(size, size).requires_grad_() for n in (1, 2)
                    )
                    h, out = call(x, y)
                    write(h)
                    got.append(gradients_or_refusal(out, x, y))
                assert_same(*got)


@pytest.mark.parametrize("create", [False, True])
def test_data_of_results_that_hand_on_gradients(create: bool) -> None:
    """Where hooks look at a result's gradient, its graph has a backward for what others contribute to it."""
    got = []
    for call in (product_first, argand.compile(product_first, backend="aot_eager")):
        x, y = (torch.linspace(-n, 1, 9).double().requires_grad_() for n in (1, 2))
        h, out = call(x, y)
        seen = []
        h.register_hook(seen.append)
        h.data = h.data * 2
        of_inputs = torch.autograd.grad([out.sum(), h.sum()], [x, y], create_graph=create)
        got.append([one.detach() for one in (*of_inputs, *seen)])
    assert_same(*got)


def of_two(x, y):
    return (x * y).tanh(), (x - y).exp() * y


def by_strides(x, y):
    v = x.as_strided((3, 3), (1, 3)) * y
    return v, (y.t() @ v).exp() + x


def windows(x, y):
    return x.exp(), x.as_strided((4, 3), (2, 1)) @ y


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_data_of_inputs_and_results(backend: str) -> None:
    """Of an input by strides, too, formulas read the memory that the forward saw."""
    for f in (of_two, by_strides, windows):
        compiled = argand.compile(f, backend=backend)
        for write in (data_replaced, added_to_data):
            got = []
            for call in (f, compiled):
                x, y = (torch.linspace(-n, 1, 9).double().view(3, 3).requires_grad_() for n in (1, 2))
                h, out = call(x, y)
                write(x)
                write(h)
                got.append(gradients_or_refusal(out.sum() + h.sum(), x, y))
            assert_same(*got)


def doubled(x, buffer):
    buffer.mul_(2)
    return x * buffer


def doubled_in_part(x, buffer):
    buffer[0].mul_(2)
    return (x * buffer).sin()


def doubled_and_viewed(x, buffer):
    buffer.mul_(2)
    return buffer.t() @ x


def doubled_unseen(x, buffer):
    buffer.data.mul_(2)
    return torch.stack([x * buffer, buffer.clone()])


def given_what_is_read(x, buffer):
    twice = x.detach() * 2
    buffer.copy_(twice)
    return x * twice


def doubled_and_read_both_ways(x, buffer):
    buffer.mul_(2)
    return buffer.t() @ x + buffer * x


def doubled_in_the_part_that_is_read(x, buffer):
    row = buffer[0]
    row.mul_(2)
    return row * x


def doubled_by_a_view(x, buffer):
    turned = buffer.t()
    turned.mul_(2)
    return turned @ x


def given_the_input(x, buffer):
    buffer.copy_(x.detach())
    return x * buffer


def given_another_result(x, buffer):
    twice = x.detach() * 2
    buffer.copy_(twice)
    return x * buffer + twice * x.exp()


WRITING = [
    doubled, doubled_in_part, doubled_unseen, doubled_and_viewed, given_what_is_read, doubled_and_read_both_ways,
    doubled_in_the_part_that_is_read, doubled_by_a_view, given_the_input, given_another_result,
]  # fmt: skip


@pytest.mark.parametrize("of", ["dense", "strided"])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("f", WRITING)
def test_gradients_read_inputs_that_the_graph_writes_to_as_they_are_by_then(f: Any, dynamic: Any, of: str) -> None:
    """And a write that autograd notices is refused, as in eager."""
    compiled = argand.compile(f, backend="aot_eager" if dynamic else "native", dynamic=dynamic)
    for write in RESULT_WRITERS:
        got = []
        for call in (f, compiled):
            x, buffer = torch.linspace(-1, 1, 9).view(3, 3).requires_grad_(), torch.linspace(-2, 1, 9).view(3, 3)
            buffer = buffer if of == "dense" else torch.linspace(-2, 1, 18).view(3, 6)[:, ::2]
            out = call(x, buffer)
            write(buffer)
            got.append(gradients_or_refusal(out, x))
        assert_same(*got)


def rectified(x, activation):
    activation.relu_()
    return x + activation


def added_after_it_was_read(x, activation):
    out = x * activation.mul_(2)
    activation.add_(1)
    return out + activation


@pytest.mark.parametrize(
    ("backend", "fs"), [("aot_eager", WRITING), ("native", [doubled, rectified, added_after_it_was_read])]
)
def test_gradients_read_activations_that_the_graph_writes_to_as_they_are_by_then(backend: str, fs: list[Any]) -> None:
    """Autograd's node of the graph has made what these hold; they are views of any kind, or none."""
    for f in fs:
        compiled = argand.compile(f, backend=backend)
        for of, write in [(of, write) for of in ("whole", "part", "turned") for write in (*RESULT_WRITERS, None)]:
            got = []
            for call in (f, compiled):
                x, leaf = (torch.linspace(-n, 1, 9).view(3, 3).requires_grad_() for n in (1, 2))
                whole = torch.cat([leaf, leaf]) if of == "part" else leaf * 1
                activation = whole[1:4] if of == "part" else whole.t() if of == "turned" else whole
                out = call(x, activation)
                count = activation._version
                if write is not None:
                    write(activation)
                got.append((*gradients_or_refusal(out, x, leaf), whole.detach(), count))
            assert_same(*got)


def test_views_that_autograd_refuses_writes_to_are_not_written_to() -> None:
    compiled = argand.compile(doubled, backend="aot_eager")
    for view in (lambda one: one[0], lambda one: one.unbind()[0]):
        shown = []
        for call in (doubled, compiled):
            x, leaf = (torch.linspace(-n, 1, 9).view(3, 3).requires_grad_() for n in (1, 2))
            whole = leaf * 1
            refused = False
            try:
                call(x, view(whole)).sum().backward()
            except RuntimeError:
                refused = True
            shown.append((refused, whole.detach(), x.grad, leaf.grad))
        assert_same(*shown)


def test_a_forward_without_a_backward_makes_no_copies() -> None:
    from helpers import collected

    model = LayerNormed()
    with collected("aot_forward_graph", "aot_backward_graph") as events:
        argand.compile(model, backend="aot_eager")(torch.randn(4, 16)).sum().backward()
    forward, backward = (str(event.text()) for event in events)
    assert forward.count("aten.clone.default") <= 2 and "aten.clone" not in backward


class Counting(nn.Module):
    """Counts its calls in a buffer that the result depends on by more than one operation."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(16, 16)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count += 1
        return self.a(x) * (1 + 0.01 * self.count)


def test_two_forwards_that_write_to_a_buffer_before_one_backward():
    """Eager keeps what it computed of the buffer, not the buffer itself."""
    torch.manual_seed(0)
    model, x = Counting(), torch.randn(4, 16)
    grads = []
    for call in (model, argand.compile(model)):
        model.zero_grad()
        model.count.zero_()
        for _ in range(2):
            (call(x) + call(2 * x)).square().sum().backward()
        grads.append((model.a.weight.grad, model.a.bias.grad, model.count.clone()))
    assert_same(grads[1], grads[0])


def detached(x, other):
    return other.detach() * x.exp()


def data_and_itself(x, other):
    return other.data * x + other * x.sin()


def seen_as_it_is(x, other):
    return other.view(3, 3) * x


@pytest.mark.parametrize("f", [detached, data_and_itself, seen_as_it_is])
def test_what_a_graph_detaches_keeps_its_data(f: Any) -> None:
    """And shares it, for writes in place."""
    for backend, dynamic in (("aot_eager", None), ("native", True)):
        compiled = argand.compile(f, backend=backend, dynamic=dynamic)
        for write in RESULT_WRITERS[:-1]:
            got = []
            for call in (f, compiled):
                x, other = (torch.linspace(-1, n, 9).view(3, 3).requires_grad_() for n in (1, 2))
                out = call(x, other)
                write(other)
                got.append(gradients_or_refusal(out, x))
            assert_same(*got)

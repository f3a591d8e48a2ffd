"""`options={"freezing": True}`: parameters are constants until one changes."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import argand
from argand import events
from argand.runtime import frozen_parameters


class Residual(nn.Module):
    """Convolutions and norms of many kinds, an addition, a pooled linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8))
        self.short = nn.Sequential(nn.Conv2d(8, 8, 1, bias=False), nn.BatchNorm2d(8, affine=False))
        self.single = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.BatchNorm2d(8), nn.ReLU6())
        self.wide = nn.Sequential(nn.Conv2d(8, 16, 3, padding=2, dilation=2, groups=2), nn.Hardswish())
        self.squeeze = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 4, 1), nn.SiLU(), nn.Conv2d(4, 16, 1))
        self.last = nn.Linear(16, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = F.relu(self.body(x) + self.short(x)) + x
        x = self.wide(self.single(x))
        x = x * torch.sigmoid(self.squeeze(x))
        return self.last(x.mean((2, 3)))


class Others(nn.Module):
    """What is not folded or packed: other ranks, transposed, a result that two read, a norm before its layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.shared = nn.Conv2d(3, 6, 3)
        self.shared_norm = nn.BatchNorm2d(6)
        self.up = nn.Sequential(nn.ConvTranspose2d(6, 6, 2, stride=2), nn.BatchNorm2d(6))
        self.row = nn.Sequential(nn.Conv1d(6, 6, 3), nn.BatchNorm1d(6))
        self.precise = nn.Conv2d(6, 4, 3).double()
        self.grey = nn.Conv2d(1, 4, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.shared(self.norm(x))
        z = self.up(self.shared_norm(y) + y.sigmoid())
        return z, self.row(z.flatten(2)), self.precise(z.double()), self.grey(x[:, :1]), y


class Encoder(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.names = nn.Embedding(50, width)
        layer = nn.TransformerEncoderLayer(width, 4, 128, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.layers(self.names(ids) * 2.0)


def with_statistics(module: nn.Module) -> nn.Module:
    """A module in eval mode whose norms have seen something."""
    torch.manual_seed(0)
    for each in module.modules():
        if isinstance(each, nn.modules.batchnorm._BatchNorm):
            each.running_mean.uniform_(-0.5, 0.5)
            each.running_var.uniform_(0.5, 2.0)
            if each.affine:
                nn.init.uniform_(each.weight, 0.5, 1.5)
                nn.init.uniform_(each.bias, -0.5, 0.5)
    return module.eval()


def frozen_by(module: nn.Module) -> nn.Module:
    return argand.compile(module, options={"freezing": True}, fullgraph=True)


def check(compiled, module, *args):
    with torch.no_grad():
        torch.testing.assert_close(compiled(*args), module(*args), rtol=2e-4, atol=2e-5)


def calls_of(run):
    """How often values were computed of parameters while `run()` ran."""
    made = []
    original = frozen_parameters.FrozenCall._prepared

    def counted(self, inputs, tensors):
        made.append(len(tensors))
        return original(self, inputs, tensors)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frozen_parameters.FrozenCall, "_prepared", counted)
        run()
    return len(made)


@pytest.mark.parametrize("last", [False, True], ids=["row-major", "channels last"])
def test_convolutions_and_norms_are_eagers(last, seen):
    module, x = with_statistics(Residual()), torch.randn(2, 3, 17, 16)
    if last:
        module, x = module.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    compiled = frozen_by(module)
    with argand.config.patch(verify_ir=True):
        check(compiled, module, x)
    check(compiled, module, torch.randn_like(x))
    assert not seen["fallback lower"]


def test_norms_are_part_of_the_weights_before_them():
    module, x = with_statistics(Residual()), torch.randn(2, 3, 16, 16)
    graphs = []
    stop = events.bus.subscribe(lambda event: graphs.append(event.text()), ["post_grad_graphs"])
    check(frozen_by(module), module, x)
    stop()
    called = {line.split("(")[0].split(" = ")[1] for line in graphs[0].splitlines() if " = torch.ops." in line}
    assert "torch.ops.argand.packed_convolution.default" in called
    assert not [name for name in called if "norm" in name or "hardswish" in name or "silu" in name]


def test_additions_alone_are_computed_with_a_convolution():
    class Bottleneck(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.a(x)
            return self.c(x + self.b(x))

    module, x = Bottleneck().eval(), torch.randn(2, 8, 9, 9)
    graphs = []
    stop = events.bus.subscribe(lambda event: graphs.append(event.text()), ["post_grad_graphs"])
    check(frozen_by(module), module, x)
    stop()
    assert graphs[0].count("= torch.ops.argand.packed_convolution_and.default(") == 1
    assert "torch.ops.aten.add" not in graphs[0]


class Activated(nn.Module):
    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.conv, self.more, self.linear = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1), nn.Linear(64, 48)
        self.activation = activation

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = self.activation(self.conv(x))
        return z, self.activation(self.more(x) + x), self.activation(self.linear(y))


@pytest.mark.parametrize(
    "activation",
    [nn.ReLU(), nn.ReLU6(), nn.Hardtanh(), nn.Hardswish(), nn.SiLU(), nn.GELU(), nn.GELU("tanh"), nn.LeakyReLU()],
    ids=str,
)
def test_what_is_no_number_stays_so(activation, monkeypatch):
    """oneDNN's own ReLU would make zeros of it."""
    from argand.backends.programs import freezing

    monkeypatch.setattr(freezing, "_is_faster", lambda node, key: True)
    module = Activated(activation).eval()
    x, y = torch.randn(2, 8, 6, 6), torch.randn(3, 5, 64)
    compiled = frozen_by(module)
    check(compiled, module, x, y)
    infinite = () if isinstance(activation, nn.GELU) else (float("inf"), -float("inf"))  # eager's differs by layout
    for value in (float("nan"), *infinite):
        x[0, 2, 3, 3], y[1, 2, 7] = value, value
        with torch.no_grad():
            for got, want in zip(compiled(x, y), module(x, y)):
                torch.testing.assert_close(got, want, rtol=2e-4, atol=2e-5, equal_nan=True)


def test_what_is_not_packed_is_eagers():
    module = with_statistics(Others())
    compiled = frozen_by(module)
    with argand.config.patch(verify_ir=True):
        check(compiled, module, torch.randn(2, 3, 9, 9))


def test_transformers_are_eagers():
    module = Encoder().eval()
    compiled = frozen_by(module)
    ids = torch.randint(0, 50, (2, 7))
    check(compiled, module, ids)
    check(compiled, module, torch.randint(0, 50, (2, 7)))


@pytest.mark.parametrize("packed", [True, False])
def test_products_are_eagers_whichever_is_faster(packed, monkeypatch):
    from argand.backends.programs import freezing

    monkeypatch.setattr(freezing, "_is_faster", lambda node, key: packed)
    module = nn.Sequential(nn.Linear(40, 70), nn.GELU(), nn.Linear(70, 33, bias=False)).eval()
    check(frozen_by(module), module, torch.randn(5, 40))
    check(frozen_by(module), module, torch.randn(3, 4, 40))


def test_products_are_timed_once(tmp_path, monkeypatch):
    from argand.backends.programs import freezing

    asked = []

    def timer(calls, device):
        one, *others = [call() for call in calls]
        for other in others:
            assert other is None or torch.allclose(one, other, atol=1e-3)
        asked.append(len(calls))
        return [1.0, *[2.0] * (len(calls) - 1)]

    monkeypatch.setattr(freezing, "time_calls", timer)
    module = nn.Sequential(nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 40)).eval()
    with argand.config.patch(cache_dir=str(tmp_path)):
        check(frozen_by(module), module, torch.randn(5, 40))
        argand.reset()
        check(frozen_by(module), module, torch.randn(5, 40))
    assert len(asked) == 1


def written(module):
    with torch.no_grad():
        module.first[0].weight.mul_(1.5)


def through_data(module):
    module.first[0].weight.data.mul_(1.5)


def other_memory(module):
    module.first[0].weight.data = module.first[0].weight.data * 1.5


def another(module):
    module.first[0].weight = nn.Parameter(module.first[0].weight.detach() * 1.5)


def other_statistics(module):
    module.first[1].running_mean.add_(0.3)


def loaded(module):
    module.load_state_dict({name: tensor * 1.1 for name, tensor in module.state_dict().items()})


def trained(module):
    module.train()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    module(torch.randn(2, 3, 16, 16)).sum().backward()
    optimizer.step()
    module.eval()


@pytest.mark.parametrize(
    "change",
    [written, through_data, other_memory, another, other_statistics, loaded, trained],
    ids=lambda f: f.__name__,
)
def test_changed_parameters_are_seen(change):
    module, x = with_statistics(Residual()), torch.randn(2, 3, 16, 16)
    compiled = frozen_by(module)

    def run():
        for _ in range(3):
            check(compiled, module, x)
        with torch.no_grad():
            before = module(x)
        change(module)
        for _ in range(3):
            check(compiled, module, x)
        with torch.no_grad():
            assert not torch.allclose(before, module(x))

    assert calls_of(run) <= 2


def test_parameters_that_always_change_are_no_constants(seen):
    module, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval(), torch.randn(2, 3, 8, 8)
    compiled = frozen_by(module)

    def run():
        for _ in range(3 * frozen_parameters._PATIENCE):
            with torch.no_grad():
                module[0].weight.mul_(0.9)
            check(compiled, module, x)

    assert 1 < calls_of(run) <= frozen_parameters._PATIENCE + 2
    assert seen["fallback freezing"] == 1


def test_modules_of_one_class_have_constants_of_their_own():
    modules = [with_statistics(Residual()) for _ in range(3)]
    with torch.no_grad():
        for number, module in enumerate(modules):
            module.last.weight.mul_(1.0 + number)
    compiled = [frozen_by(module) for module in modules]
    x = torch.randn(2, 3, 16, 16)

    def run():
        for _ in range(4):
            for one, module in zip(compiled, modules):
                check(one, module, x)

    assert calls_of(run) <= 3


def test_gradients_are_recorded_without_constants():
    module, x = with_statistics(Residual()), torch.randn(2, 3, 16, 16)
    compiled, other = frozen_by(module), copy.deepcopy(module)
    check(compiled, module, x)
    compiled(x).sum().backward()
    other(x).sum().backward()
    for one, two in zip(module.parameters(), other.parameters()):
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-3, atol=1e-4)


def test_buffers_that_the_graph_writes_are_no_constants():
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(4))
            self.scale = nn.Parameter(torch.rand(4))

        def forward(self, x):
            self.seen += x.sum(0)
            return x * self.scale.exp() + self.seen

    module = Counts()
    other = copy.deepcopy(module)
    compiled = frozen_by(module)
    for _ in range(3):
        x = torch.randn(3, 4)
        check(compiled, other, x)
    torch.testing.assert_close(module.seen, other.seen)


def test_norms_in_training_mode_write_statistics():
    module = with_statistics(Residual()).train()
    other = copy.deepcopy(module)
    compiled = frozen_by(module)
    for _ in range(2):
        check(compiled, other, torch.randn(4, 3, 16, 16))
    torch.testing.assert_close(module.first[1].running_var, other.first[1].running_var)


def test_results_that_follow_from_parameters_are_the_callers():
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(8))

        def forward(self, x):
            gain = self.weight.exp()
            return x * gain, gain, gain.view(2, 4)

    module = Scale()
    compiled, x = frozen_by(module), torch.randn(3, 8)
    with torch.no_grad():
        for result in compiled(x):
            result.zero_()
    check(compiled, module, x)


def test_large_results_of_parameters_are_not_kept():
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Parameter(torch.rand(400))

        def forward(self, x):
            return x + torch.outer(self.a, self.a).exp()

    module = Outer()
    kept = []
    original = frozen_parameters.FrozenCall._prepared

    def made(self, inputs, tensors):
        found = original(self, inputs, tensors)
        kept.extend(found.values)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frozen_parameters.FrozenCall, "_prepared", made)
        check(frozen_by(module), module, torch.randn(400, 400))
    assert sum(value.numel() for value in kept) < 400 * 400


def test_constants_go_with_their_parameters():
    sets = []
    original = frozen_parameters.FrozenCall._prepared

    def made(self, inputs, tensors):
        sets.append(self)
        return original(self, inputs, tensors)

    module, x = with_statistics(Residual()), torch.randn(2, 3, 16, 16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frozen_parameters.FrozenCall, "_prepared", made)
        compiled = frozen_by(module)
        check(compiled, module, x)
        with torch.no_grad():
            module.last.weight.mul_(2.0)
        check(compiled, module, x)
    (call,) = set(sets)
    assert len([each for each in call._sets if each.lives()]) <= 2
    del compiled, module
    gc.collect()
    assert call._sets == ()


def test_parameters_of_inference_mode_are_no_constants(seen):
    with torch.inference_mode():
        module = with_statistics(Residual())
        x = torch.randn(2, 3, 16, 16)
        compiled = frozen_by(module)
        for _ in range(2):
            torch.testing.assert_close(compiled(x), module(x), rtol=2e-4, atol=2e-5)
            module.last.bias.add_(1.0)
    assert seen["fallback freezing"] == 1


def test_under_inference_mode():
    module, x = with_statistics(Residual()), torch.randn(2, 3, 16, 16)
    compiled = frozen_by(module)
    with torch.inference_mode():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), module(x), rtol=2e-4, atol=2e-5)
            module.last.bias.add_(1.0)


def test_casts_of_parameters_are_made_once():
    module, x = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)), torch.randn(4, 64)
    graphs = []
    stop = events.bus.subscribe(lambda event: graphs.append(event.text()), ["post_grad_graphs"])
    compiled = frozen_by(module)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(compiled(x), module(x), rtol=5e-2, atol=5e-2)
    stop()
    assert "frozen_" in graphs[0] and "_to_copy.default(frozen" not in graphs[0]


def test_other_sizes_are_eagers(seen):
    module = with_statistics(Residual())
    compiled = frozen_by(module)
    for batch in (2, 3, 4, 1):
        check(compiled, module, torch.randn(batch, 3, 16, 16))


def test_the_setting_is_the_default_of_the_option():
    module, x = with_statistics(Residual()), torch.randn(2, 3, 16, 16)
    with argand.config.patch(freezing=True):
        compiled = argand.compile(module)
        assert calls_of(lambda: check(compiled, module, x)) == 1
        argand.reset()
        compiled = argand.compile(module, options={"freezing": False})
        assert calls_of(lambda: check(compiled, module, x)) == 0


def test_never_slower_compares_what_is_frozen():
    module, x = with_statistics(Residual()), torch.randn(2, 3, 16, 16)
    compiled = argand.compile(module, options={"freezing": True, "never_slower": True})

    def run():
        for _ in range(6):
            check(compiled, module, x)

    assert calls_of(run) == 1

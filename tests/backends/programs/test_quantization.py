"""`options={"quantization": ...}`: weights of linear layers as integers of 8 bits."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import argand
from argand import events
from argand.backends.programs import freezing
from argand.errors import ConfigError, SavedModelError
from argand.runtime import frozen_parameters
from argand.runtime.kernels import int8

MODES = ("int8_weight_only", "int8_dynamic")
# of the largest sum of magnitudes of a result: half a step of a weight, and of a row, of 127 each, and bfloat16's own
FAR = {"int8_weight_only": 0.5 / 127, "int8_dynamic": 1.1 / 127}


class Block(nn.Module):
    """Layers with and without bias and what follows them, an addition that ends there, one that does not."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.a, self.b = nn.Linear(width, 96), nn.Linear(96, width, bias=False)
        self.gate, self.up, self.down = nn.Linear(width, 80), nn.Linear(width, 80), nn.Linear(80, width)
        self.small = nn.Linear(width, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.b(F.gelu(self.a(self.norm(x)))) + x
        z = self.down(F.silu(self.gate(y)) * self.up(y))
        return z + y, self.small(z), F.relu(self.a(x)), F.gelu(self.gate(x), approximate="tanh")


def rounded(module: nn.Module, mode: str) -> nn.Module:
    """The module with layers that compute what quantized ones are to, in double precision."""

    def layer(linear: nn.Linear) -> nn.Module:
        class Rounded(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                weight = linear.weight.detach().t()
                scales = int8.scales_of(weight)
                terms, columns = weight.shape
                integers = int8.integers_of(int8.packed(weight, scales, True), terms, columns, True)
                rows, factor = x.double().flatten(0, -2), scales[:columns].double()
                if mode == "int8_dynamic":
                    of_rows, rows = int8.rounded_rows(x.flatten(0, -2))
                    factor = factor * of_rows[:, None].double()
                made = rows @ integers * factor
                made = made if linear.bias is None else made + linear.bias.double()
                return made.unflatten(0, x.shape[:-1]).to(x.dtype)

        return Rounded()

    for name, child in module.named_children():
        if isinstance(child, nn.Linear) and min(child.weight.shape) >= 32:
            setattr(module, name, layer(child))
    return module


def quantized(module: nn.Module, mode: str, **options) -> nn.Module:
    return argand.compile(module, options={"quantization": mode, **options}, fullgraph=True)


@pytest.fixture
def told():
    """What is said of quantized graphs."""
    found = []
    stop = events.bus.subscribe(found.append, ["quantization"])
    yield found
    stop()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("mode", MODES)
def test_layers_are_what_rounded_weights_give(mode, dtype, seen):
    torch.manual_seed(0)
    module = Block().eval().to(dtype)
    compiled, reference = quantized(module, mode), rounded(Block().eval().to(dtype), mode)
    reference = Block().eval().to(dtype)
    reference.load_state_dict(module.state_dict())
    reference = rounded(reference, mode)
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype is torch.float32 else {"rtol": 5e-2, "atol": 5e-2}
    for shape in ((5, 64), (2, 3, 64), (1, 64)):
        x = torch.randn(shape, dtype=dtype)
        with torch.no_grad(), argand.config.patch(verify_ir=True):
            for got, want in zip(compiled(x), reference(x)):
                if (
                    mode == "int8_dynamic" and dtype is torch.float32
                ):  # a row's number halfway between two may go either way
                    assert (got - want).norm() < 2e-3 * want.norm()
                else:
                    torch.testing.assert_close(got, want, **tolerance)
    assert not seen["fallback lower"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("mode", MODES)
def test_results_are_as_near_as_the_steps_of_8_bits(mode, dtype):
    """Each weight is off by half a step of its column at most, each number of a row by half a step of the row."""
    torch.manual_seed(1)
    layer = nn.Linear(200, 70).to(dtype)
    x = torch.randn(9, 200, dtype=dtype)
    with torch.no_grad():
        got = quantized(layer, mode)(x).double()
    weight, rows = layer.weight.detach().double(), x.double()
    bound = rows.abs().sum(1)[:, None] * weight.abs().amax(1)[None] * 0.5 / 127
    if mode == "int8_dynamic":
        bound += rows.abs().amax(1)[:, None] * (weight.abs() * (1 + 0.5 / 127)).sum(1)[None] * 0.5 / 127
    exact = rows @ weight.t() + layer.bias.detach().double()
    bound = bound * 1.01 + exact.abs() * torch.finfo(dtype).eps
    assert ((got - exact).abs() <= bound).all()
    assert ((got - exact).norm() / exact.norm()) < (0.01 if mode == "int8_weight_only" else 0.02)


@pytest.mark.parametrize("mode", MODES)
def test_what_was_done_is_told(mode, told):
    compiled = quantized(Block().eval(), mode)
    with torch.no_grad():
        compiled(torch.randn(4, 64))
    (event,) = told
    assert event.data["mode"] == mode
    assert sorted(event.data["layers"].values()) == [(64, 80)] * 3 + [(64, 96)] * 2 + [(80, 64), (96, 64)]
    assert list(event.data["left"].values()) == ["its weight is small (64 x 8)"]
    assert "weight of 96 x 64" in event.text() and "left as it is, its weight is small" in event.text()


def test_what_follows_is_computed_with_a_layer():
    class Follows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c, self.d = (nn.Linear(64, 64) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.b(F.gelu(self.a(x)))
            return self.d(self.c(x) + x)

    module, x, graphs = Follows().eval(), torch.randn(2, 3, 64), []
    stop = events.bus.subscribe(lambda event: graphs.append(event.text()), ["post_grad_graphs"])
    compiled = quantized(module, "int8_weight_only")
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), module(x), rtol=0.05, atol=0.05)
    stop()
    assert graphs[0].count("argand.int8_linear.default(") == 4
    assert "aten.gelu" not in graphs[0] and "aten.add" not in graphs[0]


@pytest.mark.parametrize("mode", MODES)
def test_sizes_of_batches_vary(mode, told):
    module = Block().eval()
    compiled = quantized(module, mode)
    for rows in (2, 3, 5, 8, 17, 1):
        x = torch.randn(rows, 4, 64)
        with torch.no_grad():
            for got, want in zip(compiled(x), module(x)):
                assert (got - want).norm() < 0.05 * want.norm()
    assert len(told) <= 3 and all(len(event.data["layers"]) == 7 for event in told)


def test_a_weight_that_layers_share_is_packed_once():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.names, self.body = nn.Embedding(100, 64), nn.Linear(64, 64)
            self.head = nn.Linear(64, 100, bias=False)
            self.head.weight = self.names.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(self.body(self.names(ids))))

    module, ids, kept = Tied().eval(), torch.randint(0, 100, (2, 5)), []
    original = frozen_parameters.FrozenCall._prepared

    def made(self, inputs, tensors):
        found = original(self, inputs, tensors)
        kept.append(len(found.values))
        return found

    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(frozen_parameters.FrozenCall, "_prepared", made)
        got, want = quantized(module, "int8_dynamic")(ids), module(ids)
    assert (got - want).norm() < 0.05 * want.norm()
    assert kept == [4]


def written(module):
    with torch.no_grad():
        module.a.weight.mul_(1.5)


def through_data(module):
    module.a.weight.data.mul_(1.5)


def another(module):
    module.a.weight = nn.Parameter(module.a.weight.detach() * 1.5)


def loaded(module):
    module.load_state_dict({name: tensor * 1.1 for name, tensor in module.state_dict().items()})


def other_bias(module):
    with torch.no_grad():
        module.a.bias.add_(3.0)


@pytest.mark.parametrize("change", [written, through_data, another, loaded, other_bias], ids=lambda f: f.__name__)
@pytest.mark.parametrize("mode", MODES)
def test_changed_weights_are_seen(mode, change):
    module, x = Block().eval(), torch.randn(3, 64)
    compiled = quantized(module, mode)
    with torch.no_grad():
        compiled(x), compiled(x)
        before = module(x)[2]
    change(module)
    with torch.no_grad():
        for _ in range(2):
            got, want = compiled(x)[2], module(x)[2]
            assert (got - want).norm() < 0.03 * want.norm()
        assert (before - want).norm() > 0.05 * want.norm()


def test_graphs_that_record_gradients_keep_their_weights():
    freezing._warn_of_gradients.cache_clear()
    module, x = Block().eval(), torch.randn(3, 64)
    compiled = quantized(module, "int8_dynamic")
    with pytest.warns(UserWarning, match="quantization is for inference"):
        results = compiled(x)
    for got, want in zip(results, module(x)):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    results[0].sum().backward()
    assert module.a.weight.grad is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        quantized(Block(32).train(), "int8_dynamic")(torch.randn(2, 32))
    with torch.no_grad():
        assert not torch.equal(compiled(x)[0], module(x)[0])


def test_weights_that_are_no_transposed_parameters(told):
    class Conv1D(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.randn(64, 96)), nn.Parameter(torch.randn(96))
            self.other = nn.Parameter(torch.randn(96, 40))

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            made = torch.addmm(self.bias, x, self.weight)
            return made @ self.other.exp(), x @ y

    module, x, y = Conv1D(), torch.randn(4, 64), torch.randn(64, 64)
    with torch.no_grad():
        got, want = quantized(module, "int8_weight_only")(x, y), module(x, y)
    assert (got[0] - want[0]).norm() < 0.02 * want[0].norm()
    torch.testing.assert_close(got[1], want[1])
    assert len(told[0].data["layers"]) == 2 and list(told[0].data["left"].values()) == [
        "its right side is no parameter"
    ]


def test_other_dtypes_are_left(told):
    for dtype in (torch.float64, torch.float16):
        module, x = nn.Linear(64, 64).to(dtype), torch.randn(3, 64).to(dtype)
        with torch.no_grad():
            torch.testing.assert_close(quantized(module, "int8_dynamic")(x), module(x))
    assert [list(event.data["left"].values()) for event in told] == [["it is of float64"], ["it is of float16"]]


def test_layers_under_autocast():
    module, x = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)), torch.randn(4, 64)
    compiled = quantized(module, "int8_dynamic")
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        got, want = compiled(x), module(x)
    assert got.dtype is want.dtype and (got - want).norm() < 0.05 * want.norm()


def test_with_freezing_and_a_contest():
    class Images(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.image = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
            self.last = nn.Linear(8, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.gelu(self.last(self.image(x).mean((2, 3))))

    class Wide(Images):
        def __init__(self) -> None:
            super().__init__()
            self.image, self.last = nn.Sequential(nn.Conv2d(3, 40, 3), nn.BatchNorm2d(40)), nn.Linear(40, 64)

    for module in (Images().eval(), Wide().eval()):
        compiled = quantized(module, "int8_weight_only", freezing=True, never_slower=True)
        x = torch.randn(2, 3, 9, 9)
        with torch.no_grad():
            for _ in range(5):
                got, want = compiled(x), module(x)
                assert (got - want).norm() < 0.02 * want.norm()


def test_what_cannot_be_is_refused():
    module = nn.Linear(64, 64)
    with pytest.raises(ConfigError, match="unknown quantization 'int4'"):
        argand.compile(module, options={"quantization": "int4"})
    compiled = quantized(module, "int8_dynamic", never_slower=True)
    with torch.no_grad(), pytest.raises(SavedModelError, match="no options but"):
        argand.save(compiled, "never-written.argand", torch.randn(2, 64))


def test_a_second_process_of_the_same_cache(tmp_path, told):
    module, x = Block().eval(), torch.randn(3, 64)
    with argand.config.patch(cache_dir=str(tmp_path)), torch.no_grad():
        plain = argand.compile(module)(x)
        first = quantized(module, "int8_dynamic")(x)
        argand.reset()
        second = quantized(module, "int8_dynamic")(x)
        again = argand.compile(module)(x)
    for one, two, three, four in zip(first, second, plain, again):
        assert torch.equal(one, two) and torch.equal(three, four)
    assert not torch.equal(first[0], plain[0]) and len(told) == 2

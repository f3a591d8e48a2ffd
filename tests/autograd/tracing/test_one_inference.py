"""An operation is inferred once, for capture, for traces and for passes: and is what each would infer by itself."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from opdb_aot import graph_of, load_op_db, samples
from torch import nn

import argand
import sweeps
from argand.autograd import trace_inference
from argand.autograd.recording import recorder
from argand.autograd.tracing.tracer import Tracer
from argand.errors import AutogradError
from argand.graph.compat import targets_of
from argand.graph.metadata import builder, metas, specs
from argand.graph.metadata.specs import Spec, SpecTable
from argand.graph.nodes.program import AtenProgram
from helpers import assert_same

aten = torch.ops.aten


def described(result: Any) -> object:
    """What is inferred of an operation, in values that can be compared."""
    if isinstance(result, Spec):
        return result.plain, result.conj, result.neg, result.meta.is_inference(), result.meta.requires_grad
    if isinstance(result, metas.Many):
        return result.kind, result.device, [described(item) for item in result.items]
    return type(result), result


class Both:
    """Infers anew what is taken from a table, and compares. `taken`: how often something was."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.taken = 0
        by_recorder, by_builder = recorder.Recorder._result_specs, builder.Builder.infer

        def recorded(tracer: Any, key: Any, func: Any, args: Any, kwargs: Any) -> Any:
            known = key in tracer.specs.results(func, kwargs)
            result = by_recorder(tracer, key, func, args, kwargs)
            if known:
                held = {name: tracer._held(value) for name, value in kwargs.items()}
                self.compare(func, result, tracer._held(args), held)
            return result

        def built(made_by: Any, func: Any, args: Any, kwargs: Any) -> Any:
            before = len(made_by.table._lasting) + len(made_by.table._passing)
            result = by_builder(made_by, func, args, kwargs)
            if before == len(made_by.table._lasting) + len(made_by.table._passing):
                named = {name: made_by.spec(value) for name, value in kwargs.items()}
                self.compare(func, result, tuple(map(made_by.spec, args)), named)
            return result

        patch.setattr(recorder.Recorder, "_result_specs", recorded)
        patch.setattr(builder.Builder, "infer", built)

    def compare(self, func: Any, result: Any, args: Any, kwargs: Any) -> None:
        self.taken += 1
        assert described(metas.infer(SpecTable(), func, args, kwargs)) == described(result), (func, args, kwargs)


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Iterator[Both]:
    yield Both(monkeypatch)
    argand.reset()


def lines(program: AtenProgram) -> list[object]:
    """The program node by node: targets, arguments, metadata."""
    told: list[object] = []
    for node in program.graph.nodes:
        val = node.meta.get("val")
        values = val if isinstance(val, (tuple, list)) else [val]
        sizes = [(v.shape, v.stride(), v.dtype, v.is_conj()) if isinstance(v, torch.Tensor) else v for v in values]
        told.append((node.name, node.target, str(node.args), str(node.kwargs), node.meta.get("device"), sizes))
    return [*told, program.outputs, program.mutations]


# ---------------------------------------------------------------------- operators, models, random programs


def alone(patch: pytest.MonkeyPatch, function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> list[object]:
    """The program where nothing is known."""
    with patch.context() as meanwhile:
        meanwhile.setattr(recorder, "table_for_program", lambda _: SpecTable())
        return lines(trace_inference(graph_of(function, list(inputs)), inputs))


def test_op_db_infers_the_same_anew(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0
    for op in load_op_db()[:: 15 if sweeps.WHOLE else 40]:
        if not op.supports_dtype(torch.float32, "cpu"):
            continue
        for function, inputs in islice(samples(op, torch.float32), 0, None, 6):
            try:
                expected = alone(monkeypatch, function, inputs)
            except AutogradError:
                continue
            for _ in range(2):  # the second time, all is known
                assert lines(trace_inference(graph_of(function, inputs), inputs)) == expected, op.name
            compared += 1
    assert compared > 20 and both.taken > compared


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (4, 4)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        return x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.LazyLinear(5)
    )


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(
    ("model", "size"), [(lambda: nn.Sequential(Attention(), Attention()), (2, 6, 16)), (images, (2, 3, 12, 12))]
)
def test_models(both: Both, model: Callable[[], nn.Module], size: tuple[int, ...], gradients: bool) -> None:
    x = torch.randn(size)
    module = model().eval()
    module(x)
    compiled = argand.compile(module, fullgraph=True, backend="aot_eager")
    with torch.set_grad_enabled(gradients):
        assert_same(module(x), compiled(x))
    assert both.taken > 5


def step(number: int, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    steps: list[Callable[[], torch.Tensor]] = [
        lambda: x + y,
        lambda: x @ y.mT,
        lambda: x.t().contiguous() * 2,
        lambda: x.t(),
        lambda: torch.softmax(x, -1) / 3,
        lambda: torch.cat([x, y], 1)[:, ::2],
        lambda: x.double().mean(1, keepdim=True).expand_as(x).to(x.dtype),
        lambda: torch.where(x > 0, x, y.relu()),
        lambda: x.clone().add_(y).mul_(2),
        lambda: x.reshape(-1).cumsum(0).view_as(x),
        lambda: torch.complex(x, y).conj().abs(),
        lambda: (x > y).sum() * x,
        lambda: x[torch.arange(x.shape[0]).flip(0)],
        lambda: torch.full_like(x, 2) // 3 + x,
    ]
    return steps[number % len(steps)]()


@pytest.mark.parametrize("seed", range(sweeps.part(24)))
def test_random_programs(both: Both, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    chosen = random.Random(seed)
    numbers = [chosen.randrange(14) for _ in range(8)]

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for number in numbers:
            x = step(number, x, y if y.shape == x.shape else x)
        return x

    with torch.no_grad():
        inputs = torch.randn(4, 4), torch.randn(4, 4).t()
        assert_same(program(*inputs), argand.compile(program, backend="aot_eager")(*inputs))
        shared = trace_inference(graph_of(program, inputs), inputs)
        assert lines(shared) == alone(monkeypatch, program, inputs)
    assert both.taken > 4


# ---------------------------------------------------------------------- what is not taken over


def inferred(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> int:
    """How many operations are inferred meanwhile."""
    count = 0
    infer = metas.infer

    def counted(*args: Any) -> Any:
        nonlocal count
        count += 1
        return infer(*args)

    with monkeypatch.context() as patch:
        patch.setattr(metas, "infer", counted)
        work()
    return count


def halves(x: torch.Tensor) -> torch.Tensor:
    return (x + 1) / 2 + torch.full((7,), 1.0)


def traced(function: Callable[..., Any], *inputs: torch.Tensor) -> Callable[[], AtenProgram]:
    return lambda: trace_inference(graph_of(function, list(inputs)), inputs)


def test_a_second_program_infers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    specs._table_of.cache_clear()
    trace = traced(halves, torch.ones(5, 7, dtype=torch.int64))
    assert inferred(monkeypatch, trace) == 4
    assert inferred(monkeypatch, trace) == 0


def test_what_capture_asked_is_not_inferred_for_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    specs._table_of.cache_clear()
    x = torch.ones(11, 7)
    count = inferred(monkeypatch, lambda: argand.compile(lambda x: F.layer_norm(x, (7,)).exp(), backend="eager")(x))
    assert count >= 2
    assert inferred(monkeypatch, traced(lambda x: F.layer_norm(x, (7,)).exp(), x)) == 0


def test_other_settings_infer_anew() -> None:
    x = torch.ones(5, 7, dtype=torch.int64)
    before = torch.get_default_dtype()
    for dtype in (torch.float32, torch.float64, torch.float32):
        try:
            torch.set_default_dtype(dtype)
            program = traced(halves, x)()
        finally:
            torch.set_default_dtype(before)
        assert program.graph.output_node().args[0][0].meta["val"].dtype is dtype


def test_passes_under_autocast_infer_for_the_program_at_hand() -> None:
    table = specs.table_for_program(specs.settings())
    lasting = table.results(aten.add.Tensor, {})
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert table.results(aten.add.Tensor, {}) is not lasting
        program = traced(lambda x: (x @ x).exp(), torch.ones(3, 3))()  # its operators come with their casts
    assert targets_of(program.graph)[:2] == [aten._to_copy.default, aten.mm.default]
    assert lines(program) != lines(traced(lambda x: (x @ x).exp(), torch.ones(3, 3))())


def deterministic(wanted: bool | None) -> bool:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(not before if wanted is None else wanted)
    return before


def with_onednn(wanted: bool | None) -> bool:
    before: bool = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(not before if wanted is None else wanted)
    return before


@pytest.mark.parametrize("change", [deterministic, with_onednn])
def test_a_setting_that_a_graph_changes(change: Callable[[bool | None], bool]) -> None:
    tracer = Tracer()
    lasting = tracer.specs.results(aten.add.Tensor, {})
    tracer.look_at_settings()
    assert tracer.specs.results(aten.add.Tensor, {}) is lasting
    before = change(None)
    try:
        tracer.look_at_settings()
        assert Tracer().specs.results(aten.add.Tensor, {}) is not lasting
    finally:
        change(before)
    assert tracer.specs.results(aten.add.Tensor, {}) is not lasting
    assert Tracer().specs.results(aten.add.Tensor, {}) is lasting


def test_operators_of_the_program_are_asked_again() -> None:
    sizes = [3]

    @torch.library.custom_op("one_inference::grown", mutates_args=())
    def grown(x: torch.Tensor) -> torch.Tensor:
        return x.new_zeros(sizes[0])

    grown.register_fake(lambda x: x.new_empty(sizes[0]))
    x = torch.ones(2)
    for sizes[0] in (3, 5):
        program = traced(lambda x: grown(x), x)()
        assert program.graph.output_node().args[0][0].meta["val"].shape == (sizes[0],)


def test_no_more_is_kept_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specs, "_MOST", 20)
    for size in range(2, 40):
        traced(halves, torch.ones(size, 7, dtype=torch.int64))()
        assert len(specs.table_for_program(specs.settings())._specs) <= 20

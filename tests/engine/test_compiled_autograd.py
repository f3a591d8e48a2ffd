"""What compiled autograd leaves as it is: errors, memory, accumulation, threads; and what it says."""

from __future__ import annotations

import copy
import functools
import gc
import json
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import argand
import warm
from argand.engine import backward_calls, entries
from argand.engine.entries import Trial
from argand.report.html import build
from helpers import collected


@pytest.fixture(autouse=True)
def compiled() -> Iterator[None]:
    argand.reset()  # also where the test before did not load what the fixture of all tests looks for
    with argand.compiled_autograd(backend="eager"):
        yield


def leaf(*size: int) -> torch.Tensor:
    return torch.randn(*size, requires_grad=True)


def graphs_of(program: Callable[[], Any]) -> tuple[list[str], list[str]]:
    """Ids of the graphs that were recorded, and reasons why not."""
    with collected("compiled_autograd_graph", "fallback") as events:
        program()
    ids = [str(event.compile_id) for event in events if event.name == "compiled_autograd_graph"]
    return ids, [event.data["reason"] for event in events if event.data.get("scope") == "compiled_autograd"]


def same_as_eager(program: Callable[[], Any], times: int = 3) -> None:
    """The same outcome, error or not, each time."""

    def outcome() -> Any:
        torch.manual_seed(0)
        try:
            return program()
        except RuntimeError as error:
            return str(error)

    with torch.autograd.set_detect_anomaly(False):
        torch.autograd._engine_run_backward, ours = (  # type: ignore[attr-defined]
            torch.autograd.graph._engine_run_backward,
            torch.autograd._engine_run_backward,  # type: ignore[attr-defined]
        )
        try:
            want = outcome()
        finally:
            torch.autograd._engine_run_backward = ours  # type: ignore[attr-defined]
    for _ in range(times):
        assert outcome() == want


def test_ids_count_structures_and_their_sizes() -> None:
    weight = leaf(4, 4)

    def step(rows: int) -> None:
        (torch.randn(rows, 4) @ weight).exp().sum().backward()

    with collected("compiled_autograd_graph", "span_begin") as events:
        for rows in (2, 2, 2, 3, 3):
            step(rows)
        weight.cos().sum().backward()
    recorded = [str(event.compile_id) for event in events if event.name == "compiled_autograd_graph"]
    spans = [event.compile_id for event in events if event.data.get("span") == "compile_autograd"]
    assert recorded == ["!0/-/-", "!0/-/-", "!1/-/-"]
    assert all(one is not None and one.autograd == 0 for one in spans)
    assert [one.recompile for one in spans if one is not None] == [0, 1]
    assert len({one.frame for one in spans if one is not None}) == 1


def test_trace_and_report_show_ids(tmp_path: Path) -> None:
    weight = leaf(4, 4)
    with argand.config.patch(trace_dir=str(tmp_path)), argand.compiled_autograd(backend="aot_eager"):
        for _ in range(2):
            (torch.randn(2, 4) @ weight).exp().sum().backward()
    records = [
        json.loads(line.split("] ", 1)[1])
        for path in tmp_path.glob("*.log")
        for line in path.read_text().splitlines()
        if "compiled_autograd_id" in line
    ]
    graph = next(record for record in records if "compiled_autograd_graph" in json.dumps(record))
    assert graph["compiled_autograd_id"] == 0 and "frame_id" not in graph
    assert any(record.get("frame_compile_id") == 0 for record in records)
    built = build(tmp_path, tmp_path / "report")
    assert "[!0/" in built.index.read_text()


def test_logs_show_ids(capsys: pytest.CaptureFixture[str]) -> None:
    weight = leaf(4)
    argand.set_logs(compiled_autograd=True)
    weight.exp().sum().backward()
    argand.set_logs(compiled_autograd=False)
    assert "[!0/-/-] [__compiled_autograd]" in capsys.readouterr().err


def test_a_second_backward_raises_as_in_eager() -> None:
    weight = leaf(3)

    def program() -> None:
        loss = weight.exp().sum()
        loss.backward()
        loss.backward()

    same_as_eager(program)


def test_writes_to_saved_tensors_raise_as_in_eager() -> None:
    weight = leaf(3)

    def program(write: bool) -> None:
        y = weight.exp()
        loss = y.square().sum()
        if write:
            with torch.no_grad():
                y.zero_()
        loss.backward()

    program(False)
    program(False)
    same_as_eager(lambda: program(True))


def test_hooks_that_raise() -> None:
    """The error is the hook's, leaves that came before it have their gradients, and the tape is used up."""
    first, second = leaf(3), leaf(3)

    def program(raises: bool) -> Any:
        def hook(grad: torch.Tensor) -> None:
            if raises:
                raise KeyError("mine")

        first.grad = second.grad = None
        y = first.exp()
        y.register_hook(hook)
        loss = (y.detach() * second).sum() + y.sin().sum()
        outcome = []
        for _ in range(2):
            try:
                loss.backward()
            except (KeyError, RuntimeError) as error:
                outcome.append(str(error)[:60])
        return outcome, [None if one.grad is None else one.grad.tolist() for one in (first, second)]

    for raises in (False, False, True, False):
        same_as_eager(lambda raises=raises: program(raises), 1)  # type: ignore[misc]


def test_formulas_of_nodes_with_hooks_are_in_graphs() -> None:
    weight = leaf(3)
    with collected("compiled_autograd_graph") as events:
        for _ in range(3):
            y = weight.tanh()
            y.register_hook(lambda grad: grad * 2)
            z = y.exp()
            z.retain_grad()
            z.sum().backward()
    (text,) = [event.text() for event in events]
    before, between, after = text.split("# code of the program runs")
    assert "expand" in before and "mul" in between and "tanh_backward" in after


def test_a_function_whose_gradients_vary() -> None:
    """Which inputs a function gives gradients to is not known ahead: an error says that it was another time."""

    class Sometimes(torch.autograd.Function):
        given = True

        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:
            return grad * 2 if Sometimes.given else None

    weight = leaf(3)
    for _ in range(2):
        Sometimes.apply(weight.exp()).sum().backward()
    Sometimes.given = False
    with pytest.raises(RuntimeError, match="gave gradients to other inputs"):
        Sometimes.apply(weight.exp()).sum().backward()
    weight.grad = None
    Sometimes.apply(weight.exp()).sum().backward()
    assert weight.grad is None


def test_gradients_accumulate_in_place() -> None:
    weight = leaf(3)
    for _ in range(2):
        weight.exp().sum().backward()
    first = weight.grad
    assert first is not None
    where, version = first.data_ptr(), first._version
    weight.exp().sum().backward()
    assert weight.grad is first and first.data_ptr() == where and first._version == version + 1


def test_a_gradient_that_was_given_is_not_the_leafs() -> None:
    weight, given = leaf(3), torch.ones(3)
    for _ in range(3):
        weight.grad = None
        (weight + 1).backward(given)
        assert weight.grad is not None and weight.grad.data_ptr() != given.data_ptr()


def test_new_gradients_are_taken_as_they_are() -> None:
    """What the graph computed becomes `.grad`: nothing is copied."""
    weight, seen = leaf(3), []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            found = module(*args)
            seen.append(found[0].data_ptr())
            return found

        return run

    with argand.compiled_autograd(backend=backend):
        for _ in range(3):
            weight.grad = None
            weight.exp().sum().backward()
    assert weight.grad is not None and weight.grad.data_ptr() == seen[-1] and len(seen) == 2


def test_saved_tensors_are_freed() -> None:
    weight = leaf(3)
    for _ in range(3):
        y = weight.exp()
        held = weakref.ref(y.untyped_storage()), y.data_ptr()
        saved = torch.ones(1000)
        alive = weakref.ref(saved)
        loss = (weight.sum() * saved).sum() + y.sum()
        del saved, y
        loss.backward()
        gc.collect()
        assert alive() is None and held, "the loss is alive, what the backward has used is not"
        del loss


def test_numbers_of_pythons_are_guarded() -> None:
    weight = leaf(3)

    def program(factor: float) -> Any:
        weight.grad = None
        (weight.exp() * factor).sum().backward()
        assert weight.grad is not None
        return weight.grad.tolist()

    for factor in (2.0, 2.0, 3.0, 3.0, 2.0, 0.0, -0.0, 2):
        same_as_eager(lambda factor=factor: program(factor), 1)  # type: ignore[misc]


def test_saved_tensors_that_are_one_and_that_are_two() -> None:
    a, b = leaf(3), leaf(3)

    def program(together: bool) -> Any:
        a.grad = b.grad = None
        a.data = torch.randn(3)
        b.data = a.data if together else torch.randn(3)
        (a * b).sum().backward()
        assert a.grad is not None and b.grad is not None
        return a.grad.tolist(), b.grad.tolist()

    for together in (True, True, False, True, False):
        same_as_eager(lambda together=together: program(together), 1)  # type: ignore[misc]


def test_sizes_that_a_node_does_not_tell() -> None:
    weight = leaf(2)

    def program(before: int) -> Any:
        weight.grad = None
        torch.cat([torch.ones(before), weight, torch.ones(4 - before)]).mul(torch.arange(6.0)).sum().backward()
        assert weight.grad is not None
        return weight.grad.tolist()

    for before in (1, 1, 3, 2):
        same_as_eager(lambda before=before: program(before), 1)  # type: ignore[misc]


def test_more_sizes_than_the_limit_run_on_the_engine() -> None:
    weight = leaf(4)

    def program() -> None:
        for rows in range(1, 6):
            for _ in range(2):
                (weight * torch.ones(rows, 4)).sum().backward()

    with argand.config.patch(cache_size_limit=3):
        ids, reasons = graphs_of(program)
    assert len(ids) == 3 and any("cache_size_limit" in reason for reason in reasons)
    assert weight.grad is not None and weight.grad.tolist() == [30.0] * 4


def test_more_forms_than_the_limit_run_on_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "_MOST_FORMS", 2)
    weight = leaf(2)

    def program() -> None:
        for depth in (1, 2, 3, 4, 1, 2):
            y = weight
            for _ in range(depth):
                y = y * 1
            y.sum().backward()

    ids, reasons = graphs_of(program)
    assert len(ids) == 2 and len(reasons) == 1
    assert weight.grad is not None and weight.grad.tolist() == [6.0, 6.0]


def test_a_backward_that_is_refused_is_not_looked_at_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    table, reads = leaf(4, 2), []
    read = backward_calls._structure
    monkeypatch.setattr(backward_calls, "_structure", lambda *args: reads.append(args) or read(*args))

    def program(sparse: bool) -> None:
        torch.nn.functional.embedding(torch.tensor([0, 2]), table, sparse=sparse).sum().backward()
        table.grad = None

    for _ in range(120):
        program(True)
    assert 8 <= len(reads) < 14, "and now and then, for it might be another one"
    reads.clear()
    ids, _ = graphs_of(lambda: [program(False) for _ in range(100)])
    assert len(ids) == 1, "one that begins in the same way is recorded"


def test_a_backend_that_fails_leaves_the_engine() -> None:
    def backend(module: Any, inputs: Any) -> Any:
        raise ValueError("no")

    weight = leaf(2)

    def program() -> None:
        with argand.compiled_autograd(backend=backend):
            for _ in range(3):
                weight.sum().mul(2).backward()

    _, reasons = graphs_of(program)
    assert weight.grad is not None and weight.grad.tolist() == [6.0, 6.0]
    assert [reason for reason in reasons if "failed" in reason]


def test_other_threads_are_left_alone() -> None:
    weight = leaf(2)

    def elsewhere() -> None:
        for _ in range(2):
            weight.exp().sum().backward()

    def program() -> None:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()

    assert graphs_of(program) == ([], [])
    with argand.config.patch(compiled_autograd=True):
        assert graphs_of(program)[0] == ["!0/-/-"]


def test_threads_share_leaves() -> None:
    weight = leaf(50)

    def work() -> None:
        with argand.compiled_autograd(backend="eager"):
            for _ in range(20):
                (weight * 2).sum().backward()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert weight.grad is not None and weight.grad.tolist() == [160.0] * 50


def test_anomaly_mode_is_the_engines() -> None:
    weight = leaf(2)

    def program() -> None:
        with torch.autograd.detect_anomaly(check_nan=True):
            (weight.detach() * 0 - 1 + 0 * weight).sqrt().sum().backward()

    with pytest.warns(UserWarning):
        _, reasons = graphs_of(lambda: pytest.raises(RuntimeError, program))
    assert reasons == ["anomaly mode looks at each node"]


def test_autocast_is_the_engines() -> None:
    weight = leaf(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = (torch.randn(2, 4) @ weight).float().sum()
        assert graphs_of(loss.backward) == ([], [])


def test_hooks_of_ddp_are_seen(tmp_path: Path) -> None:
    if not torch.distributed.is_available():
        pytest.skip("no torch.distributed")
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))

        def program(module: Any) -> None:
            for _ in range(4):
                module(torch.ones(1, 2)).sum().backward()

        ids, reasons = graphs_of(functools.partial(program, model))
        assert ids == ["!0/-/-"] * 2 and not reasons  # without reductions, before there are buckets, and with them
        assert model.module.weight.grad.tolist() == [[4.0, 4.0]] * 2
        copied = copy.deepcopy(model)
        copied(torch.ones(1, 2)).sum().backward()
        freed = weakref.ref(model), weakref.ref(copied)
        del model, copied
        gc.collect()
        assert freed[0]() is None and freed[1]() is None
    finally:
        torch.distributed.destroy_process_group()


def test_the_engines_entry_is_put_back() -> None:
    engine = torch.autograd.graph._engine_run_backward
    name: Any = torch.autograd
    assert name._engine_run_backward is not engine  # the fixture's context
    with argand.config.patch(compiled_autograd=True):
        assert name._engine_run_backward is not engine
    assert name._engine_run_backward is not engine


def test_nothing_is_replaced_without_it() -> None:
    code = (
        "import torch, argand\n"
        "engine = torch.autograd._engine_run_backward\n"
        "with argand.compiled_autograd():\n"
        "    assert torch.autograd._engine_run_backward is not engine\n"
        "assert torch.autograd._engine_run_backward is engine\n"
        "argand.config.compiled_autograd = True\n"
        "assert torch.autograd._engine_run_backward is not engine\n"
        "argand.config.compiled_autograd = False\n"
        "assert torch.autograd._engine_run_backward is engine\n"
    )
    warm.run(["-c", code], check=True)


@pytest.mark.parametrize(("disturbed", "turns"), [(0, 3), (4, 6), (99, 12)])
def test_turns_are_taken_until_two_took_about_as_long(disturbed: int, turns: int) -> None:
    """Who takes processors from the engine makes its calls look long, each by another time."""
    trial, calls = Trial(), 0
    while not trial.over:
        ours = not trial.is_engines_turn()
        late = 2.0**calls if len(trial.engines) < disturbed else 0.0
        trial.took(3e-3 if ours else 1e-3 + late, ours=ours)
        calls += 1
    assert len(trial.engines) == turns and trial.engine_is_faster is (disturbed < 99)

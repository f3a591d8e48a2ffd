"""DistributedDataParallel: what is trained is what eager trains, and gradients are reduced while the backward runs."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import argand
from argand.backends.in_parts import buckets
from argand.backends.in_parts.buckets import bucket_limits
from argand.backends.in_parts.cuts import compile_split, cut_places
from argand.backends.registry import lookup_backend
from argand.errors import BackendCompilerFailed, ConfigError
from argand.report.html import build
from distributed.models import CNN, GPT, Llama, batch
from distributed.ranks import run_ranks

PROGRAMS = "tests.distributed.ddp_programs"
TOLERANCE = {"eager": 0.0, "aot_eager": 0.0, "native": 1e-4}


def check(names: list[str]) -> None:
    wrong = []
    for rank, answers in enumerate(run_ranks(PROGRAMS, names)):
        for name, found in answers.items():
            wrong += [
                f"rank {rank}: {name} {way}: {error}"
                for way, error in found.items()
                if not error <= TOLERANCE[way.split()[1]]
            ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.distributed
def test_models_train_as_in_eager() -> None:
    check(["gpt", "llama", "cnn"])


@pytest.mark.distributed
def test_options_of_ddp() -> None:
    check(
        "default_buckets no_sync static_graph unused bucket_views own_buffers joined hook buckets".split(),
    )


@pytest.mark.distributed
def test_buckets_are_reduced_while_the_backward_runs(tmp_path) -> None:
    for answers in run_ranks(PROGRAMS, ["overlap"], ARGAND_TRACE=str(tmp_path), ARGAND_LOGS="ddp_graphs"):
        found = answers["overlap"]
        assert found["order"] == ["part", "bucket"] * 3
        assert found["hooked"] == [False] * 3, "around the forward of its module DDP is as fast as in eager"
        children = [["optimize_ddp_split_child", f"submod_{i}"] for i in range(3)]
        assert found["told"] == [["optimize_ddp_split_graph", ""], *children]
    build(tmp_path, tmp_path / "report", False)
    made = {path.name for path in (tmp_path / "report").rglob("*")}
    assert any(name.startswith("optimize_ddp_split_graph_") for name in made), made
    assert any(name.startswith("optimize_ddp_split_child_submod_2_") for name in made)


def graph_of(model: torch.nn.Module, call=None) -> tuple[torch.fx.GraphModule, list[object]]:
    """The graph that is captured of a call of the model, and its inputs."""
    made = []

    def keep(gm: torch.fx.GraphModule, inputs: list[object]):
        made.append((gm, inputs))
        return gm.forward

    argand.compile(call or model, backend=keep)(batch(model, 0, 0))
    return made[0]


def places(model: torch.nn.Module, *limits: int, call=None) -> tuple[torch.fx.GraphModule, list[int]]:
    gm, inputs = graph_of(model, call)
    return gm, cut_places(gm, inputs, itertools.chain(limits, itertools.repeat(limits[-1])))


def test_buckets_fill_in_the_order_in_which_gradients_arrive() -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(6)))  # 288 bytes each
    gm, inputs = graph_of(model, lambda x: model(x[:, :8]))
    linear = [i for i, node in enumerate(gm.graph.nodes) if "linear" in node.name and node.op == "call_function"]
    found = cut_places(gm, inputs, iter([288, 600, 600, 600]))
    assert found == [linear[2], linear[5]]  # the first bucket is one layer, the next three


def test_a_parameter_used_twice_is_ready_at_its_first_use() -> None:
    small, large = places(GPT(), 4 * 96 * 64), places(GPT(), 4 << 20)
    names = [node.name for node in small[0].graph.nodes]
    assert small[1] and "embedding" not in names[small[1][-1] :] and not large[1]


@pytest.mark.parametrize("model", [GPT, Llama, CNN])
def test_only_tensors_that_nobody_writes_to_cross_a_cut(model) -> None:
    gm, cuts = places(model(), 1)
    nodes = list(gm.graph.nodes)
    assert len(cuts) > 5
    for cut in cuts:
        before, after = set(nodes[:cut]), nodes[cut:]
        crossing = {
            used for node in after for used in node.all_input_nodes if used in before and used.op != "placeholder"
        }
        memory = {node.meta["example_value"].untyped_storage()._cdata for node in crossing}
        for node in after:
            for number in node.meta.get("writes", ()):
                given = node.all_input_nodes[number]
                written = given.meta["example_value"].untyped_storage()._cdata
                assert written not in memory or given.op == "placeholder"


def test_a_block_without_gradients_stays_whole() -> None:
    layers = torch.nn.ModuleList(torch.nn.Linear(12, 12) for _ in range(4))

    def call(x: torch.Tensor) -> torch.Tensor:
        x = layers[0](x)
        with torch.no_grad():
            y = layers[1](x)
            y = layers[2](y)
        return layers[3](x + y)

    gm, cuts = places(layers, 1, call=call)
    modes = [number for number, node in enumerate(gm.graph.nodes) if node.target is torch._C._set_grad_enabled]
    assert cuts and not any(modes[0] < cut <= modes[1] for cut in cuts)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_parts_leave_blocks_of_autocast_and_enter_them_again(backend: str) -> None:
    layers = torch.nn.ModuleList(torch.nn.Linear(12, 12) for _ in range(6))
    parts: list[torch.fx.GraphModule] = []

    def compile_graph(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        parts.append(gm)
        return lookup_backend(backend)(gm, inputs)

    def call(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            x = layers[1](layers[0](x))
            with torch.autocast("cpu", enabled=False):
                x = layers[3](layers[2](x.float()))
            x = layers[5](layers[4](x))
        return x

    ddp = _Caps()
    ddp.bucket_bytes_cap, ddp.bucket_bytes_cap_default = 1, False
    run = argand.compile(call, backend=lambda gm, inputs: compile_split(gm, inputs, ddp, compile_graph))
    x = torch.randn(4, 12)
    want, have = call(x), run(x)
    assert len(parts) == 6 and have.dtype is torch.bfloat16 and not torch.is_autocast_enabled("cpu")
    torch.testing.assert_close(have, want)
    gradients = [torch.autograd.grad(out.float().square().sum(), list(layers.parameters())) for out in (want, have)]
    torch.testing.assert_close(*gradients)


class _Caps:
    bucket_bytes_cap = 100
    bucket_bytes_cap_default = True


def test_limits_of_buckets() -> None:
    usual = lambda ddp: list(itertools.islice(bucket_limits(ddp), 3))  # noqa: E731
    assert usual(_Caps()) == [1 << 20, 100, 100]
    given = _Caps()
    given.bucket_bytes_cap_default = False
    assert usual(given) == [100, 100, 100]
    given._bucket_config = type("Config", (), {"per_bucket_bytes_caps": (5, 7)})
    assert usual(given) == [5, 7, 7]


def test_modes_of_torch_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "active_ddp", _Caps)
    cut = {}
    for mode in (
        True,
        "ddp_optimizer",
        False,
        "no_optimization",
        "python_reducer",
        "python_reducer_without_compiled_forward",
    ):
        with argand.config.patch(optimize_ddp=mode):
            cut[mode] = buckets.ddp_to_cut() is not None
    assert [mode for mode, one in cut.items() if one] == [True, "ddp_optimizer"]
    with pytest.raises(ConfigError, match="takes bool or 'ddp_optimizer' or 'python_reducer'.*not str"):
        argand.config.optimize_ddp = "reducer"


def test_graphs_outside_ddp_stay_whole() -> None:
    told = []
    stop = argand.events.bus.subscribe(
        lambda event: told.append(event.name), ("optimize_ddp", "optimize_ddp_split_graph")
    )
    model = GPT()
    argand.compile(model, backend="eager")(batch(model, 0, 0)).sum().backward()
    stop()
    assert told == []


def test_a_part_that_cannot_be_compiled() -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4)))
    gm, inputs = graph_of(model, lambda x: model(x[:, :8]))
    compiled = []

    def compile_graph(part: torch.fx.GraphModule, args: list[object]):
        compiled.append(part)
        if len(compiled) % 2 == 0:
            raise BackendCompilerFailed("mine", RuntimeError("no"))
        return part.forward

    caps = _Caps()
    caps.bucket_bytes_cap_default = False
    with pytest.raises(BackendCompilerFailed):
        compile_split(gm, inputs, caps, compile_graph)(*inputs)
    compiled.clear()
    run = compile_split(gm, inputs, caps, compile_graph)
    with argand.config.patch(suppress_errors=True):
        assert torch.equal(run(*inputs)[0], gm(*inputs)[0]) and len(compiled) == 4
        run(*inputs)
        assert len(compiled) == 4


@pytest.mark.distributed
def test_steps_tell_whether_graphs_are_faster_in_parts_or_whole() -> None:
    first, second = (answers["contest"] for answers in run_ranks(PROGRAMS, ["contest"]))
    assert first["apart"] <= TOLERANCE["native"] and second["apart"] <= TOLERANCE["native"]
    assert first["ran"] == second["ran"]
    trial = [False] * 7 + [True] * 7 + [False] * 5 + [True] * 5
    assert first["ran"][:24] == trial and len(set(first["ran"][24:])) == 1
    assert first["told"] == second["told"] == 1

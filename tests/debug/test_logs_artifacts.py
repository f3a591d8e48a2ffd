"""What each artifact of the logs shows."""

from __future__ import annotations

import logging

import pytest
import torch

import argand
from argand import events
from argand.debug.log_names import ARTIFACTS
from debug.logs_helpers import (
    clean_logs,  # noqa: F401 (a fixture that runs for every test)
    engine_backward,
    falling_back,
    lines_of,
    native_inference,
    native_training,
    quantized,
    recompiling,
    run_toy,
    varying,
    writing,
)

# ---------------------------------------------------------------------- artifacts


ARTIFACT_TEXTS = [
    ("graph_breaks", run_toy, ["Graph break in user code at", "Graph Break Reason: [AG0001] data-dependent branch", "Hint:", "if b.sum() < 0:"]),
    ("recompiles", recompiling, ["Recompiling", "was 3, is now 4"]),
    ("recompiles_verbose", recompiling, ["all guards that failed", "version 0", "what to do:"]),
    ("guards", run_toy, ["GUARDS:", "- local 'a' TENSOR_MATCH"]),
    ("verbose_guards", run_toy, ["GUARDS:", "- local 'a' TENSOR_MATCH", "in toy_example"]),
    ("bytecode", run_toy, ["ORIGINAL BYTECODE toy_example", "MODIFIED BYTECODE toy_example", "__compiled_fn_"]),
    ("graph", run_toy, ["TRACED GRAPH", "opcode", "placeholder", "<built-in function truediv>"]),
    ("graph_code", run_toy, ["TRACED GRAPH", "===== __compiled_fn_", "def forward(self, a"]),
    ("graph_sizes", run_toy, ["TRACED GRAPH TENSOR SIZES", "abs_1: (10,)"]),
    ("trace_source", run_toy, ["TRACE starts_line", "x = a / (torch.abs(a) + 1)"]),
    ("trace_call", run_toy, ["TRACE FX call abs_1 from", "^^^"]),
    ("trace_bytecode", run_toy, ["TRACE LOAD_FAST", "[<Tensor>"]),
    ("side_effects", writing, ["SIDE EFFECTS:", "the list"]),
    ("sym_node", varying, ["eval s0 >= 2"]),
    ("aot_graphs", native_inference, ["===== Inference graph =====", "torch.ops.aten._softmax"]),
    ("aot_graphs", native_training, ["===== Forward graph =====", "===== Backward graph =====", "tangents"]),
    ("aot_joint_graph", native_training, ["===== Joint graph =====", "torch.ops.aten.cos.default"]),
    ("aot_forward_graph_fw_metadata", native_training, ["inputs (1)", "requires grad"]),
    ("compiled_autograd", engine_backward, ["===== Compiled autograd graph =====", "torch.ops.aten.mul"]),
    ("pre_grad_graphs", native_inference, ["===== BEFORE PRE GRAD =====", "torch.softmax("]),
    ("graph_code_verbose", native_inference, ["after decompose (", "torch.ops.aten."]),
    ("post_grad_graphs", native_inference, ["===== AFTER POST GRAD =====", "torch.ops.aten."]),
    ("ir_pre_fusion", native_inference, ["BEFORE FUSION", "buf1: SchedulerNode(ComputedBuffer)", "def body(self, ops):"]),
    ("ir_post_fusion", native_inference, ["AFTER FUSION", "met_dependencies", "can_inplace"]),
    ("schedule", native_inference, ["steps", "cpp_fused_", " -> buf"]),
    ("fusion", native_inference, ["nodes became", "one kernel"]),
    ("compute_dependencies", native_inference, ["reads [", "writes [", "after ["]),
    ("output_code", native_inference, ["Output code:", "def call(args):", "kernel_source = r'''"]),
    ("kernel_code", native_inference, ['extern "C" void cpp_fused_']),
    ("perf_hints", falling_back, ["aten.kthvalue.default runs with eager's kernels: "]),
    ("cudagraphs", native_inference, ["no CUDA graph is recorded: model__", "runs on the CPU"]),
    ("quantization", quantized, ["8 bits, weight of 64 x 32", "left as it is, its weight is small (32 x 4)"]),
    ("autotuning", native_training, ["no candidates are timed: model__", "_backward_"]),
    ("inductor_metrics", native_inference, ["kernels=", "loop_nodes="]),
    ("benchmarking", native_inference, ["lower: ", " ms"]),
    ("caching", native_inference, ["outcome="]),
]  # fmt: skip


@pytest.mark.parametrize(
    "name, program, parts", ARTIFACT_TEXTS, ids=[f"{n}-{p.__name__}" for n, p, _ in ARTIFACT_TEXTS]
)
def test_artifact(name: str, program, parts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    argand.set_logs(**{name: True})
    program()
    text = "\n".join(lines_of(capsys, name))
    for part in parts:
        assert part in text, f"{part!r} is not in\n{text}"
    argand.set_logs(**{name: False})
    argand.reset()
    program()
    assert f"[__{name}]" not in capsys.readouterr().err


OF_SEVERAL_PROCESSES = {"ddp_graphs", "ranks"}
"""Artifacts that tests/distributed shows."""


def test_every_artifact_that_logs_has_a_test_here() -> None:
    untested = {name for name, artifact in ARTIFACTS.items() if artifact.events} - {
        name for name, _, _ in ARTIFACT_TEXTS
    }
    assert untested == OF_SEVERAL_PROCESSES


def test_dynamic_component_tells_of_symbols(capsys: pytest.CaptureFixture[str]) -> None:
    argand.set_logs(dynamic=logging.INFO)
    varying()
    assert lines_of(capsys)[0] == "create_symbol s0 = 5 for L['x'].size()[0] [2, inf]"


def test_debug_level_of_a_component_shows_its_artifacts(capsys: pytest.CaptureFixture[str]) -> None:
    argand.set_logs(dynamo=logging.DEBUG)
    run_toy()
    text = capsys.readouterr().err
    for tag in ("graph_breaks", "guards", "bytecode", "graph", "graph_code", "trace_bytecode"):
        assert f"[__{tag}]" in text
    assert "[__verbose_guards]" not in text and "[__recompiles_verbose]" not in text  # only when asked for
    argand.set_logs(dynamo=logging.DEBUG, guards=False)
    argand.reset()
    run_toy()
    assert "[__guards]" not in capsys.readouterr().err


def test_attempts_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    argand.set_logs(dynamo=logging.INFO)
    run_toy()
    text = capsys.readouterr().err
    assert (
        "[0/0] Step 1" in text
        and "[0/0_1] Step 1" in text
        and "Restarting analysis due to [AG0001] data-dependent" in text
    )


def test_what_each_size_costs_is_no_matter_of_eagers_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    argand.set_logs(perf_hints=True)
    events.emit(
        "fallback", "backend", "each size is compiled by itself: x", backend="native", reason="x", scope="sizes"
    )
    events.emit("fallback", "autograd", "no reason", backend="native", reason="no reason", scope="backward")
    assert lines_of(capsys, "perf_hints") == [
        "each size is compiled by itself: x",
        "the backward runs with eager's kernels: no reason",
    ]


def test_bytecode_and_guards_call_nothing_of_the_programs(capsys: pytest.CaptureFixture[str]) -> None:
    """Found in a report: the listing printed a module's dict with all its builtins, and called `repr` of the program's
    objects, which were then compiled."""

    class Setting:
        called = 0

        def __repr__(self) -> str:
            Setting.called += 1
            return "Setting()\nof two lines"

    setting = Setting()
    setting.table = {"self": setting}

    def f(x):
        setting.last = x.shape[0]
        return x * len(setting.table), setting

    argand.set_logs(bytecode=True, guards=True, verbose_guards=True, trace_bytecode=True, graph_code=True)
    argand.compile(f, backend="eager")(torch.ones(3))
    text = capsys.readouterr().err
    assert Setting.called == 0 and "MODIFIED BYTECODE" in text and "of two lines" not in text
    assert all(len(line) < 500 for line in text.splitlines())


def test_guards_say_what_they_compare_with(capsys: pytest.CaptureFixture[str]) -> None:
    class Settings:
        def __init__(self) -> None:
            self.scale, self.offset, self.table = 2, None, {"gain": 1.5}

    settings = Settings()

    def f(x):
        if "missing" in settings.table or settings.offset is not None:
            return x
        return x * settings.scale * settings.table["gain"]

    argand.set_logs(guards=True)
    argand.compile(f, backend="eager")(torch.ones(3))
    text = "\n".join(lines_of(capsys, "guards"))
    for part in ("CONSTANT_MATCH 2", "CONSTANT_MATCH None", "CONSTANT_MATCH 1.5", "DICT_NOT_CONTAINS 'missing'"):
        assert part in text, text

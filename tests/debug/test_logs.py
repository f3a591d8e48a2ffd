"""`ARGAND_LOGS` and `argand.set_logs`: grammar, names, what each artifact shows, levels."""

from __future__ import annotations

import io
import logging
import os
import re
import subprocess
import sys
import textwrap
import threading
import warnings

import pytest
import torch

import argand
import warm
from argand import events
from argand.debug.log_names import ARTIFACTS, COMPONENTS, NATIVE, help_text
from argand.debug.logs import LOGS, parse
from argand.errors import BackendCompilerFailed, ConfigError
from debug.logs_helpers import (
    LINE,
    clean_logs,  # noqa: F401 (a fixture that runs for every test)
    lines_of,
    native_inference,
    native_training,
    run_toy,
    toy_example,
)
from helpers import assert_same

# ---------------------------------------------------------------------- grammar and names


@pytest.mark.parametrize(
    "text, levels, artifacts",
    [
        ("", {}, set()),
        ("dynamo", {"argand.capture": logging.INFO}, set()),
        ("+capture", {"argand.capture": logging.DEBUG}, set()),
        ("dynamo/capture", {"argand.capture": logging.INFO}, set()),
        ("-inductor", dict.fromkeys(NATIVE, logging.ERROR), set()),
        ("+native", dict.fromkeys(NATIVE, logging.DEBUG), set()),
        ("+aot/autograd", {"argand.autograd": logging.DEBUG}, set()),
        ("all", {"argand": logging.INFO}, set()),
        ("+torch", {"argand": logging.DEBUG}, set()),
        ("graph_breaks,recompiles", {}, {"graph_breaks", "recompiles"}),
        (" +dynamo , output_code ", {"argand.capture": logging.DEBUG}, {"output_code"}),
        ("+all,-argand.lower", {"argand": logging.DEBUG, "argand.lower": logging.ERROR}, set()),
        ("onnx,onnx_diagnostics", {}, {"onnx_diagnostics"}),
    ],
)
def test_grammar(text: str, levels: dict[str, int], artifacts: set[str]) -> None:
    found = parse(text)
    assert found.levels == levels and found.artifacts == artifacts


@pytest.mark.parametrize(
    "text", ["graph_break", "nonsense", "+", "dynamo,,x", "dynamo;aot", "argand.nonsense", "os.path"]
)
def test_unknown_name_lists_the_known_ones(text: str) -> None:
    with pytest.raises(ConfigError) as info:
        parse(text)
    for name in ("graph_breaks", "recompiles", "dynamo", "inductor", "output_code"):
        assert name in str(info.value)


def test_unknown_name_suggests() -> None:
    with pytest.raises(ConfigError, match="did you mean graph_breaks"):
        parse("graph_brakes")


def test_help_describes_every_name_that_logs() -> None:
    with pytest.raises(ConfigError) as info:
        parse("help")
    text = str(info.value)
    for name, artifact in ARTIFACTS.items():
        assert (f"  {name} " in text) == bool(artifact.events), name
    with pytest.raises(ConfigError, match="ddp_graphs"):
        parse("+help")
    assert all(line.endswith(".") for line in help_text(True).splitlines() if line.startswith("  "))


def test_every_name_of_torch_is_known() -> None:
    import inspect

    import torch._logging
    from torch._logging._internal import log_registry

    for name in (*log_registry.log_alias_to_log_qnames, *log_registry.artifact_names):
        if not name.startswith("custom") and "." not in name:
            parse(f"+{name}")
    for name in inspect.signature(torch._logging.set_logs).parameters:
        if name != "modules":
            argand.set_logs(**{name: None})


def test_names_of_other_modules_are_torchs() -> None:
    assert parse("+dynamo,torchvision.ops", foreign=True).levels == {"argand.capture": logging.DEBUG}


def test_every_event_of_an_artifact_is_emitted_somewhere() -> None:
    from pathlib import Path

    source = "".join(path.read_text() for path in Path(argand.__file__).parent.rglob("*.py"))
    for artifact in ARTIFACTS.values():
        for name in artifact.events:
            assert re.search(rf'(emit|detail|span)\(\s*"{name}"|"{name}" if ', source) or name == "span_end", name


# ---------------------------------------------------------------------- set_logs


def test_set_logs_takes_levels_and_artifacts(capsys: pytest.CaptureFixture[str]) -> None:
    argand.set_logs(dynamo=logging.INFO, graph_code=True)
    run_toy()
    lines = lines_of(capsys)
    assert any(line.startswith("Step 1: argand start tracing toy_example") for line in lines)
    assert any("def forward(self, a" in line for line in lines)
    argand.set_logs(graph_sizes=True)  # replaces what was chosen before
    argand.reset()
    run_toy()
    assert {line.split()[0] for line in lines_of(capsys)} <= {"TRACED", "=====", "a:", "b:", "abs_1:", "add:", "truediv:", "sum_1:", "lt:", "x:", "mul:"}  # fmt: skip
    argand.set_logs()
    argand.reset()
    run_toy()
    assert "Step" not in capsys.readouterr().err
    assert logging.getLogger("argand").propagate and not logging.getLogger("argand").handlers


@pytest.mark.parametrize(
    "wrong",
    [{"dynamo": True}, {"dynamo": "INFO"}, {"graph": logging.INFO}, {"nonsense": True}, {"modules": {"nope": 10}}],
)
def test_set_logs_refuses(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        argand.set_logs(**wrong)
    assert not LOGS.handlers


def test_set_logs_of_a_module(capsys: pytest.CaptureFixture[str]) -> None:
    argand.set_logs(modules={"argand.lower": logging.DEBUG})
    run_toy("native")
    lines = lines_of(capsys)
    assert any(line.startswith("lower took") for line in lines)
    assert any("SchedulerNode(ComputedBuffer)" in line for line in lines)  # its artifacts come with its debug level
    assert not any(line.startswith("Step") for line in lines)


def test_environment_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARGAND_LOGS", "recompiles")
    with pytest.warns(UserWarning, match="ARGAND_LOGS"):
        argand.set_logs(graph_breaks=True)
    LOGS.refresh()
    assert LOGS.artifacts == {"recompiles"}


def test_torch_logs_is_read_where_argand_logs_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_LOGS", "bytecode,somebody.elses")
    LOGS.refresh()
    assert LOGS.artifacts == {"bytecode"}
    LOGS.reset()
    monkeypatch.setenv("ARGAND_LOGS", "guards")
    LOGS.refresh()
    assert LOGS.artifacts == {"guards"}


def test_wrong_environment_is_an_error_where_the_program_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARGAND_LOGS", "graph_brakes")
    with pytest.raises(ConfigError, match="graph_brakes"):
        argand.compile(toy_example)


# ---------------------------------------------------------------------- steps (troubleshooting.txt)


def steps(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [re.sub(r" [/\w.]+\.py:\d+$| \(.*\)$", "", line) for line in lines_of(capsys) if line.startswith("Step")]


def test_steps_begin_and_end(capsys: pytest.CaptureFixture[str]) -> None:
    def f(x):
        return torch.relu(x) + 1

    argand.set_logs(dynamo=logging.INFO, inductor=logging.INFO)
    with torch.no_grad():
        argand.compile(f)(torch.randn(3))
    model = events.bus.number("model") - 1
    assert steps(capsys) == [
        "Step 1: argand start tracing f",
        "Step 1: argand done tracing f",
        "Step 2: calling compiler function native",
        f"Step 3: native compiling FORWARDS graph {model}",
        f"Step 3: native done compiling FORWARDS graph {model}",
        "Step 2: done compiler function native",
    ]


def test_the_step_that_failed_is_the_one_that_has_not_ended(capsys: pytest.CaptureFixture[str]) -> None:
    """How the document tells in which component an error is."""

    def toy_compiler(gm, _):
        raise AssertionError("no relu")

    argand.set_logs(dynamo=logging.INFO)
    with pytest.raises(BackendCompilerFailed):
        argand.compile(torch.nn.ReLU(), backend=toy_compiler)(torch.ones(3))
    assert steps(capsys)[-1] == "Step 2: calling compiler function toy_compiler"


def test_a_failure_of_the_native_backend_is_step_3(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from argand.codegen.cpp import overrides

    monkeypatch.setattr(overrides, "neg", lambda x: f"no_such_function({x})")
    argand.set_logs(dynamo=logging.INFO, inductor=logging.INFO)
    with argand.config.patch({"cpp.simdlen": 0}), pytest.raises(BackendCompilerFailed), torch.no_grad():
        argand.compile(lambda x: -x)(torch.ones(3))
    assert steps(capsys)[-1].startswith("Step 3: native compiling FORWARDS graph")


def test_backward_is_a_step_3_of_the_same_compile(capsys: pytest.CaptureFixture[str]) -> None:
    argand.set_logs(inductor=logging.INFO)
    native_training()
    text = capsys.readouterr().err
    assert re.search(r"\[0/0\] Step 3: native compiling BACKWARDS graph", text)
    assert re.search(r"\[0/0\] Step 3: native done compiling BACKWARDS graph", text)


# ---------------------------------------------------------------------- config.log_level (both documents)


def test_log_level_info_prints_graph_bytecode_and_guards(capsys: pytest.CaptureFixture[str]) -> None:
    """The deep dive's example: log_level = INFO and output_code = True."""
    with argand.config.patch(log_level=logging.INFO, output_code=True):
        run_toy("native")
    captured = capsys.readouterr()
    for part in ("__compiled_fn_", "opcode", "ORIGINAL BYTECODE toy_example", "MODIFIED BYTECODE toy_example", "GUARDS:", "- local 'a' TENSOR_MATCH", "Step 1"):  # fmt: skip
        assert part in captured.err, part
    assert "def call(args):" in captured.out
    assert "TRACE LOAD_FAST" not in captured.err


def test_log_level_debug_prints_every_instruction(capsys: pytest.CaptureFixture[str]) -> None:
    with argand.config.patch(log_level=logging.DEBUG):
        run_toy()
    assert "TRACE LOAD_FAST" in capsys.readouterr().err


def test_graph_breaks_are_printed_once_by_default(caplog: pytest.LogCaptureFixture) -> None:
    run_toy()
    argand.reset()
    run_toy()
    [record] = caplog.records
    assert record.name == "argand.capture" and record.levelno == logging.WARNING
    assert "graph break in toy_example at" in record.message and "data-dependent branch" in record.message


def test_log_level_error_prints_no_graph_breaks(caplog: pytest.LogCaptureFixture) -> None:
    with argand.config.patch(log_level=logging.ERROR):
        run_toy()
        assert not LOGS.subscribed
    assert not caplog.records


def test_who_asks_for_graph_breaks_gets_each_once(capsys: pytest.CaptureFixture[str]) -> None:
    argand.set_logs(graph_breaks=True)
    run_toy()
    text = capsys.readouterr().err
    assert text.count("Graph break in user code") == 1 and "argand: graph break" not in text


def test_explain_says_breaks_itself(caplog: pytest.LogCaptureFixture) -> None:
    argand.explain(toy_example)(torch.randn(10), torch.rand(10))
    assert not caplog.records


def test_config_debug_shows_the_native_compilers_output(capsys: pytest.CaptureFixture[str]) -> None:
    with argand.config.patch(debug=True):
        native_inference()
    text = capsys.readouterr().err
    for tag in (
        "output_code",
        "kernel_code",
        "post_grad_graphs",
        "ir_pre_fusion",
        "ir_post_fusion",
        "schedule",
        "fusion",
    ):
        assert f"[__{tag}]" in text
    assert "lower took" in text and "Step 3" in text


# ---------------------------------------------------------------------- Python's logging


def test_records_reach_handlers_of_the_program() -> None:
    logger = logging.getLogger("argand.capture")
    seen: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = seen.append  # type: ignore[method-assign]
    logger.addHandler(handler)
    try:
        argand.set_logs(dynamo=logging.INFO)
        run_toy()
    finally:
        logger.removeHandler(handler)
    assert any(record.getMessage().startswith("Step 1") and record.compile_id.frame == 0 for record in seen)
    assert {os.path.basename(record.pathname) for record in seen} >= {"frame.py"}


def test_a_level_that_the_program_set_stays() -> None:
    logger = logging.getLogger("argand")
    logger.setLevel(logging.CRITICAL)
    try:
        LOGS.refresh()
        assert logger.level == logging.CRITICAL and not LOGS.subscribed
    finally:
        logger.setLevel(logging.NOTSET)


def test_debug_level_of_the_root_logger_does_not_flood(caplog: pytest.LogCaptureFixture) -> None:
    """Regression: logging.basicConfig(level=DEBUG) is common, and must not print every instruction."""
    with caplog.at_level(logging.DEBUG):
        native_inference()
    assert not [record for record in caplog.records if record.name.startswith("argand")]


def test_nothing_is_made_for_nobody() -> None:
    """With logs off the bus has no sink for anything but graph breaks, and instructions are not looked at."""
    from argand.capture.world import narration

    native_inference()
    mine = [name for name, sinks in events.bus.named.items() if LOGS in sinks]
    assert mine == ["graph_breaks"] and LOGS not in events.bus.sinks

    class FakeFrame:
        quiet = False

        class program:
            ops = [1]

    assert narration.table(FakeFrame) is FakeFrame.program.ops


def test_prefixes_are_coloured_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    argand.set_logs(guards=True)
    for terminal, coloured in ((Terminal(), True), (io.StringIO(), False)):
        argand.reset()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", terminal)
            run_toy()
        assert ("\x1b[" in terminal.getvalue()) == coloured
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    argand.reset()
    monkeypatch.setattr(sys, "stderr", terminal)
    run_toy()
    assert "GUARDS" in terminal.getvalue() and "\x1b[" not in terminal.getvalue()


def test_format_from_the_environment(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("ARGAND_LOGS_FORMAT", "%(name)s|%(message)s")
    argand.set_logs(dynamo=logging.INFO)
    run_toy()
    assert capsys.readouterr().err.startswith("argand.capture|Step 1: argand start tracing toy_example")


def test_only_some_compile_ids(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TORCH_LOGS_TRACE_ID_FILTER", "[1/0], [2/0]")
    LOGS.reset()
    argand.set_logs(dynamo=logging.INFO)
    run_toy()
    text = capsys.readouterr().err
    assert "[1/0] Step 1" in text and "[0/0]" not in text


def test_a_text_that_cannot_be_made_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    argand.set_logs(guards=True)
    events.emit("guards", "capture", lambda: 1 / 0)
    assert lines_of(capsys) == ["<the text of guards could not be made: ZeroDivisionError('division by zero')>"]


def test_kernel_code_is_kernels_alone(capsys: pytest.CaptureFixture[str]) -> None:
    argand.set_logs(kernel_code=True)
    native_inference()
    text = "\n".join(lines_of(capsys))
    assert 'extern "C"' in text and "struct" not in text


def test_torch_compile_with_argands_backend_logs_too(capsys: pytest.CaptureFixture[str]) -> None:
    from argand.backends.interop import argand_for_torch_compile

    gm = torch.fx.symbolic_trace(lambda x: x + 1)
    argand.set_logs(inductor=logging.INFO)
    LOGS.remove()
    LOGS.remove, LOGS.subscribed, LOGS.key = None, frozenset(), None  # as before the first compile
    argand_for_torch_compile(gm, [torch.ones(3)])(torch.ones(3))
    assert "Step 3" in capsys.readouterr().err


def test_unwritable_file_is_one_warning(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("ARGAND_LOGS_OUT", "/nonexistent/place/log.txt")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        argand.set_logs(guards=True)
        run_toy()
    assert len([w for w in caught if "log.txt" in str(w.message)]) == 1
    assert "GUARDS" in capsys.readouterr().err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_full_disk_is_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARGAND_LOGS_OUT", "/dev/full")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        argand.set_logs(guards=True, bytecode=True)
        run_toy()
    assert len([w for w in caught if "cannot be written" in str(w.message)]) == 1


def test_threads_do_not_mix_lines(capsys: pytest.CaptureFixture[str]) -> None:
    argand.set_logs(bytecode=True, guards=True)

    def work(number: int) -> None:
        namespace: dict[str, object] = {}
        exec(f"def thread_{number}(x):\n    return x + {number}", namespace)
        argand.compile(namespace[f"thread_{number}"], backend="eager")(torch.ones(number + 1))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    blocks = [line for line in lines_of(capsys) if line.startswith(("ORIGINAL", "MODIFIED"))]
    names = [line.split()[2] for line in blocks]
    assert sorted(names[::2]) == [f"thread_{n}" for n in range(4)]
    assert names[::2] == names[1::2], "the parts of one entry stay together"


def test_command_line(tmp_path) -> None:
    """`ARGAND_LOGS="+dynamo" ARGAND_VERBOSE=1` and TORCH_LOGS_OUT, as in the documents."""
    script = tmp_path / "s.py"
    script.write_text(
        textwrap.dedent("""
        import torch, argand
        @argand.compile(backend="eager")
        def f(x):
            return torch.relu(x) + 1
        print(f(torch.ones(2)).tolist())
        """)
    )
    env = {**os.environ, "ARGAND_LOGS": "+dynamo,output_code", "TORCHDYNAMO_VERBOSE": "1"}
    env["TORCH_LOGS_OUT"] = str(tmp_path / "log.txt")
    done = warm.run([script], env=env, check=True, imported="compiler")
    assert done.stdout == "[2.0, 2.0]\n"
    log = (tmp_path / "log.txt").read_text()
    assert log == done.stderr and "Step 1: argand start tracing f" in log and "[0/0] [__trace_bytecode] TRACE" in log
    assert all(LINE.match(line) for line in log.splitlines())


def command(tmp_path, logs: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "s.py"
    script.write_text("import torch, argand\nprint('begun')\nargand.compile(torch.relu)\nprint('not reached')\n")
    env = {**os.environ, "ARGAND_LOGS": logs}
    return warm.run([script], env=env)


def test_help_from_the_command_line_is_no_error(tmp_path) -> None:
    """Found by trying: the names came as the text of a traceback."""
    done = command(tmp_path, " +help ")
    assert done.returncode == 0 and done.stderr == "" and "not reached" not in done.stdout
    assert "  graph_breaks " in done.stdout and "  ddp_graphs " in done.stdout


def test_unknown_name_from_the_command_line_says_where_it_stands(tmp_path) -> None:
    done = command(tmp_path, "dynamo,graph_brakes")
    assert done.returncode == 1
    assert "ARGAND_LOGS='dynamo,graph_brakes': unknown log name 'graph_brakes'" in done.stderr
    assert "did you mean graph_breaks" in done.stderr


def test_logging_changes_nothing_of_what_is_computed(capsys: pytest.CaptureFixture[str]) -> None:
    def f(x, items):
        items.append(x.sin())
        if x.sum() > 0:
            return items[-1] * 2, [repr(type(i)) for i in items]
        return x, []

    x = torch.rand(4)
    want_items: list[torch.Tensor] = []
    want = f(x, want_items)
    argand.set_logs(all=logging.DEBUG, verbose_guards=True, recompiles_verbose=True)
    got_items: list[torch.Tensor] = []
    with torch.no_grad():
        assert_same(want, argand.compile(f)(x, got_items))
    assert_same(want_items, got_items)
    lines_of(capsys)


def test_components_are_loggers_of_argand() -> None:
    for component in COMPONENTS.values():
        assert all(name == "argand" or name.startswith("argand.") for name in component.loggers)

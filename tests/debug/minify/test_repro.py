"""The minifier as the guides describe it: environment variables, log lines, files that fail by themselves."""

from __future__ import annotations

import json
import operator
import sys
from pathlib import Path

import pytest
import torch
from torch import fx

import argand
from argand import files
from argand.debug import repro
from argand.debug.minify import BackendCheck, Fingerprint, Program, minify
from argand.debug.minify.code import NotCode, graph_of, module_code
from argand.debug.minify.files import Writer
from argand.debug.minify.sources import Definitions
from argand.errors import BackendCompilerFailed, ConfigError
from debug.minify_helpers import graph_for, only_run, run_file, run_script, targets

pytestmark = pytest.mark.slow

TOY = """
import torch
import argand

model = torch.nn.Sequential(*[torch.nn.Linear(200, 200) for _ in range(5)])
# toy compiler which fails if graph contains relu
def toy_compiler(gm: torch.fx.GraphModule, _):
    for node in gm.graph.nodes:
        if node.target == torch.relu:
            assert False

    return gm


def test_backend_error():
    y = torch.ones(200, 200)
    x = torch.ones(200, 200)
    z = x + y
    a = torch.relu(z)
    return model(a)


compiled_test_backend_error = argand.compile(test_backend_error, backend=toy_compiler)
compiled_test_backend_error()
"""

FOOBAR = """
import torch
import argand

model = torch.nn.Sequential(*[torch.nn.Linear(200, 200) for _ in range(5)])

def test_backend_error():

    y = torch.ones(200, 200)
    x = torch.ones(200, 200)
    z = x + y
    a = torch.ops.aten._foobar(z)  # dummy function which errors
    return model(a)


compiled_test_backend_error = argand.compile(test_backend_error, backend="native")
compiled_test_backend_error()
"""

FOO2 = """
import torch
import argand
from argand.codegen.cpp import overrides
from argand.debug.accuracy import same

def neg3(x):
    return f"decltype({x})(2 * {x})"

overrides.neg = neg3

def foo2(x1, x2):
    a = torch.neg(x1)
    b = torch.maximum(x2, a)
    y = torch.cat([b], dim=0)
    return y

x1 = torch.randn((1, 8), dtype=torch.float32)
x2 = torch.randn((8390, 8), dtype=torch.float32)
expected_result = foo2(x1, x2)
compiled_foo2 = argand.compile(foo2)
actual_result = compiled_foo2(x1, x2)
assert same(expected_result, actual_result) == True
"""


def refuses_relu(gm: fx.GraphModule, inputs: list) -> fx.GraphModule:
    if torch.relu in targets(gm):
        raise RuntimeError("no relu")
    return gm


def forward_of(text: str) -> list[str]:
    """The statements of forward, without comments."""
    text = text[text.index("class Repro(") :]
    lines = text[text.index("def forward") :].splitlines()
    end = next(i for i, line in enumerate(lines) if line.strip().startswith("return"))
    return [line.strip() for line in lines[1 : end + 1] if not line.strip().startswith("#")]


def test_toy_compiler_of_the_guide(tmp_path: Path) -> None:
    done = run_script(tmp_path, TOY, TORCHDYNAMO_REPRO_AFTER="dynamo")
    run = only_run(tmp_path)
    text = (run / "repro.py").read_text()
    assert forward_of(text) == ["relu = torch.relu(add);  add = None", "return (relu,)"]
    assert "a = torch.relu(z)" in text, "the user's line"
    assert "# torch version" in text and "CPU" in text
    assert "inputs.pt" not in text, "the values do not matter here: only the layout is there"
    # the path is the last thing printed, and in the exception's text
    assert done.stderr.rstrip().splitlines()[-1].endswith(str(run / "repro.py"))
    assert "BackendCompilerFailed" in done.stderr and done.returncode == 1
    assert {p.name for p in run.iterdir()} >= {"minifier_launcher.py", "repro.py", "environment.txt", "progress.json"}
    assert "torch" in (run / "environment.txt").read_text()

    again = run_file(run / "repro.py")
    assert again.returncode == 1 and again.stderr.rstrip().splitlines()[-1] == "AssertionError"
    assert "toy_compiler" in again.stderr

    resumed = run_file(run / "minifier_launcher.py")
    assert "Started off with 3 nodes" in resumed.stderr and resumed.returncode == 0


def test_launcher_goes_on_or_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    gm, inputs = graph_for(lambda x: torch.relu(x + 1).sin() * 2, torch.ones(3))
    repro.minify_to_directory(gm, inputs, BackendCheck(refuses_relu))
    run = only_run(tmp_path)
    found = forward_of((run / "repro.py").read_text())
    assert len(found) == 2
    for removed in ((), ("progress.json",), ("repro.py", "progress.json")):
        for name in removed:
            (run / name).unlink()
        capsys.readouterr()
        launcher = repro.load_module(run / "minifier_launcher.py")
        result = repro.minify_main(launcher.Repro(), launcher.args, launcher.check, str(run / "minifier_launcher.py"))
        assert result is not None and result.calls == ["torch.relu"]
        assert ("SUCCESS" in capsys.readouterr().err) == bool(removed)
        assert forward_of((run / "repro.py").read_text()) == found


def test_foobar_of_the_guide(tmp_path: Path) -> None:
    done = run_script(tmp_path, FOOBAR, TORCHDYNAMO_REPRO_AFTER="aot")
    run = only_run(tmp_path)
    text = (run / "repro.py").read_text()
    assert forward_of(text) == ["_foobar = torch.ops.aten._foobar.default(add);  add = None", "return (_foobar,)"]
    assert "LoweringError" in done.stderr and "a = torch.ops.aten._foobar(z)" in done.stderr
    again = run_file(run / "repro.py")
    assert again.returncode == 1 and "LoweringError: aten._foobar" in again.stderr


def test_foobar_is_the_lowerings_fault() -> None:
    """As in the guide: the same program with aot_eager works."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten._foobar(x + 1) * 2

    x = torch.ones(3)
    for backend in ("eager", "aot_eager"):
        assert torch.equal(argand.compile(f, backend=backend)(x), f(x))
    with pytest.raises(BackendCompilerFailed, match="_foobar") as info:
        argand.compile(f, backend="native")(x)
    assert "return torch.ops.aten._foobar(x + 1) * 2" in str(info.value)


def test_accuracy_experiment_of_the_guide(tmp_path: Path) -> None:
    """neg3: the log lines are those of the document, and `neg` alone is left."""
    done = run_script(tmp_path, FOO2, TORCHDYNAMO_REPRO_AFTER="aot", TORCHDYNAMO_REPRO_LEVEL="4")
    assert done.stderr.splitlines()[:7] == [
        "Started off with 6 nodes",
        "Trying granularity 2",
        "Strategy: Truncate suffix (G: 2) (6 nodes, 2 inputs)",
        "SUCCESS: Went from 6 to 4 nodes",
        "Trying granularity 4",
        "Strategy: Remove unused inputs (G: 4) (4 nodes, 2 inputs)",
        "SUCCESS: Went from 4 to 3 nodes",
    ]
    run = only_run(tmp_path)
    text = (run / "repro.py").read_text()
    assert forward_of(text) == ["neg = torch.ops.aten.neg.default(arg0_1);  arg0_1 = None", "return (neg,)"]
    assert "def neg3(x):" in text, "the planted bug is part of the reproduction"
    assert "AccuracyError" in done.stderr and str(run / "repro.py") in done.stderr
    again = run_file(run / "repro.py")
    assert again.returncode == 1 and "AccuracyError: wrong result neg" in again.stderr


def test_compile_error_is_minified(tmp_path: Path) -> None:
    """neg2 on bytes: the C++ compiler refuses the maximum of a byte and an int."""
    text = FOO2.replace("decltype({x})(2 * {x})", "-{x}").replace("torch.float32", "torch.uint8")
    text = text.replace("torch.randn(", "torch.randint(256, ").replace(
        "def neg3", "argand.config.cpp.simdlen = 0\ndef neg3"
    )
    done = run_script(tmp_path, text, ARGAND_REPRO_AFTER="aot")
    run = only_run(tmp_path)
    lines = forward_of((run / "repro.py").read_text())
    assert [line.split(" = ")[1].split("(")[0] for line in lines[:-1]] == [
        "torch.ops.aten.neg.default",
        "torch.ops.aten.maximum.default",
    ]
    assert "error: no matching function for call to 'maximum(unsigned char&, int&)'" in done.stderr
    assert "a = torch.neg(x1)" in done.stderr
    assert "no matching function for call to 'maximum(" in run_file(run / "repro.py").stderr


def test_level_one_only_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def toy(gm: fx.GraphModule, inputs: list):
        raise RuntimeError("no")

    with argand.config.patch(repro_after="dynamo", repro_level=1), pytest.raises(BackendCompilerFailed) as info:
        argand.compile(lambda x: x.sin().cos(), backend=toy)(torch.ones(3))
    text = (only_run(tmp_path) / "repro.py").read_text()
    assert "x.sin()" in text and "sin.cos()" in text
    assert str(only_run(tmp_path) / "repro.py") in str(info.value)


def test_crash_is_found_before_it_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Level 3: the graph is tried in a child first, and this process lives on."""
    import ctypes

    monkeypatch.chdir(tmp_path)

    def crashing(gm: fx.GraphModule, inputs: list):
        if torch.relu in targets(gm):
            return lambda *args: ctypes.string_at(0)
        return gm.forward

    with argand.config.patch(repro_after="dynamo", repro_level=3), pytest.raises(BackendCompilerFailed) as info:
        argand.compile(lambda x: torch.relu(x + 1) * 2, backend=crashing)(torch.ones(3))
    assert "SIGSEGV" in str(info.value)
    assert "torch.relu" in forward_of((only_run(tmp_path) / "repro.py").read_text())[0]


WRONG_GRADIENT = """
import torch
import argand


class Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * 3


def backend(gm, inputs):
    if not any(node.target == "exp" for node in gm.graph.nodes):
        return gm.forward
    return lambda *args: [Wrong.apply(result) for result in gm(*args)]


def program(x):
    return (x * 2).exp() + 1


def begin_threads():
    class Guard(torch._C._acc.DeviceGuard):
        def type_(self):
            return torch._C._autograd.DeviceType.PrivateUse1

    torch._C._acc.register_python_privateuseone_device_guard(Guard())
    torch.randn(3, requires_grad=True).sum().backward()


if __name__ == "__main__":
    THREADS
    with argand.config.patch(repro_after="dynamo", repro_level=4):
        argand.compile(program, backend=backend)(torch.randn(4, requires_grad=True))
"""


@pytest.mark.parametrize("threads", ["", "begin_threads()"], ids=["", "beside another device"])
def test_wrong_gradient_is_minified(tmp_path: Path, threads: str) -> None:
    """Also in a process whose forks cannot run backwards: one that sees another device, and has run a backward."""
    done = run_script(tmp_path, WRONG_GRADIENT.replace("THREADS", threads or "pass"))
    assert "AccuracyError" in done.stderr and "gradient of" in done.stderr, done.stderr
    lines = forward_of((only_run(tmp_path) / "repro.py").read_text())
    assert len(lines) == 2 and ".exp()" in lines[0]


def test_programs_own_errors_are_not_minified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def late(gm: fx.GraphModule, inputs: list):
        return gm.forward

    def f(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x[i]

    with argand.config.patch(repro_after="dynamo"):
        compiled = argand.compile(f, backend=late)
        compiled(torch.ones(3), torch.tensor([1]))
        with pytest.raises(IndexError):
            compiled(torch.ones(3), torch.tensor([7]))
    assert not (tmp_path / "argand_minifier").exists()


def test_error_of_a_compiled_graph_is_minified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def backend(gm: fx.GraphModule, inputs: list):
        def run(*args):
            if torch.relu in targets(gm):
                raise RuntimeError("relu does not run")
            return gm.forward(*args)

        return run

    with argand.config.patch(repro_after="dynamo"), pytest.raises(RuntimeError, match="relu does not run") as info:
        argand.compile(lambda x: torch.relu(x + 1) * 2, backend=backend)(torch.ones(3))
    assert str(only_run(tmp_path)) in "".join(info.value.__notes__)


def test_base_dir(tmp_path: Path) -> None:
    def toy(gm: fx.GraphModule, inputs: list):
        raise RuntimeError("no")

    with (
        argand.config.patch(repro_after="dynamo", base_dir=str(tmp_path)),
        pytest.raises(BackendCompilerFailed),
    ):
        argand.compile(lambda x: x.sin(), backend=toy)(torch.ones(3))
    assert "sin" in (tmp_path / "repro.py").read_text() and only_run(tmp_path)


def test_unknown_settings_are_refused() -> None:
    with argand.config.patch(repro_after="somewhere"), pytest.raises(ConfigError, match="somewhere"):
        argand.compile(lambda x: x + 1)(torch.ones(3))
    with argand.config.patch(repro_after="dynamo", repro_level=7), pytest.raises(ConfigError, match="7"):
        argand.compile(lambda x: x + 2)(torch.ones(3))


# ------------------------------------------------------------------------------- text and back


def program_of_everything(x: torch.Tensor, w: torch.Tensor) -> tuple:
    y = torch.ones(2, 3, dtype=torch.float64)
    y = y[1:, None, ..., 0].to(torch.float32, memory_format=torch.contiguous_format)
    a, b = torch.chunk(x @ w, 2, dim=-1)
    a.mul_(2.5).clamp_(min=-float("inf"), max=1e-3)
    c = torch.where(a > 0, a, torch.tensor(float("nan")))
    d = torch.nn.functional.layer_norm(b, (b.shape[-1],), eps=1e-6)
    return c, {"d": -d}, y, torch.cat([c, d], dim=-1).view(-1), ~(a > b), x.size(0)


def test_code_comes_back_as_the_same_graph(tmp_path: Path) -> None:
    gm, inputs = graph_for(program_of_everything, torch.randn(4, 4), torch.randn(4, 6))
    text, state = module_code(gm)
    again = graph_of(written(tmp_path, text).Repro())
    assert not state
    assert [(n.op, n.name, n.target) for n in again.graph.nodes] == [
        (n.op, n.name, n.target if n.op != "placeholder" else n.name) for n in gm.graph.nodes
    ]
    want, got = gm(*[v.clone() for v in inputs]), again(*[v.clone() for v in inputs])
    assert argand.debug.accuracy.same(want, got)
    lines = {n.name: n.meta.get("user_line") for n in gm.graph.nodes}
    assert all(n.meta.get("user_line") == lines[n.name] for n in again.graph.nodes if n.op == "call_function")


def written(folder: Path, text: str):
    path = folder / "made.py"
    path.write_text(f"import torch, operator\n\n\n{text}\n")
    return repro.load_module(path)


def test_edited_code_is_read(tmp_path: Path) -> None:
    text = """class Repro(torch.nn.Module):
    def forward(self, x, y):
        z = (x + y * 2)[0] @ y
        return (-z < 1,)
"""
    gm = graph_of(written(tmp_path, text).Repro())
    assert [t.__name__ for t in targets(gm)] == ["mul", "add", "getitem", "matmul", "neg", "lt"]
    with pytest.raises(NotCode, match="neither"):
        graph_of(written(tmp_path, text.replace("z = (x", "while x: z = (x")).Repro())


def test_nested_graphs_come_back(tmp_path: Path) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    gm, inputs = graph_for(f, torch.ones(3))
    text, _ = module_code(gm)
    path = tmp_path / "nested.py"
    modules = "\n".join(f"import {m}" for m in ("argand.capture.torch_functions.hops", "torch", "operator"))
    path.write_text(f"{modules}\n\n\n{text}\n")
    again = graph_of(repro.load_module(path).Repro())
    assert argand.debug.accuracy.same(gm(*inputs), again(*inputs))


def test_saved_data_is_loaded_without_running_code(tmp_path: Path) -> None:
    gm, inputs = graph_for(lambda x: torch.relu(x), torch.tensor([1.0, -2.0]))
    check = BackendCheck("eager")
    Writer(tmp_path, check, Fingerprint("raised")).repro(Program(gm, inputs))
    module = repro.load_module(tmp_path / "repro.py")
    assert torch.equal(module.args[0], inputs[0])
    assert module.check == check
    (tmp_path / "inputs.pt").write_bytes(b"\x80\x04cos\nsystem\n.")
    files.seal(tmp_path / "inputs.pt")
    with pytest.raises(SystemExit, match="weights_only|Weights only"):
        repro.load(str(tmp_path / "repro.py"), "inputs.pt")


FACTOR = 3


def helper(value: int) -> int:
    return value * FACTOR


def needs_helper(gm: fx.GraphModule, inputs: list) -> fx.GraphModule:
    assert helper(len(inputs)) and operator.add(1, 2)
    return gm


def test_source_of_a_backend_brings_what_it_needs() -> None:
    made = Definitions()
    assert made.name_of(needs_helper).endswith("needs_helper")
    captured = 5

    def inner(gm: fx.GraphModule, inputs: list) -> object:
        return helper(captured), sys.argv

    inner.__module__ = "__main__"
    assert made.name_of(inner) == "inner"
    text = "\n".join(made.lines)
    assert "captured = 5" in text and "import sys" in text
    assert made.name_of("native") == "'native'"


def test_graph_with_varying_sizes_is_minified() -> None:
    def fails(gm: fx.GraphModule, inputs: list) -> None:
        if torch.relu in targets(gm) and "symbols" in gm.meta:
            raise RuntimeError("sizes vary")

    found: list = []

    def keep(gm: fx.GraphModule, inputs: list):
        found.append((gm, list(inputs)))
        return gm.forward

    argand.compile(lambda x: torch.relu(x.sin() + 1).view(-1, x.size(0)), backend=keep, dynamic=True)(torch.ones(4, 6))
    result = minify(*found[0], fails)
    assert result.calls == ["torch.relu"] and "symbols" in result.gm.meta
    result = minify(*found[0], BackendCheck(refuses_relu))
    assert result.calls == ["torch.relu"] and "symbols" not in result.gm.meta


def needs_symbols(gm: fx.GraphModule, inputs: list) -> fx.GraphModule:
    if torch.relu in targets(gm) and "symbols" in gm.meta and inputs[0].shape[0] > 2:
        raise RuntimeError("sizes vary")
    return gm


def test_file_keeps_sizes_that_vary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def f(x: torch.Tensor, n: int) -> torch.Tensor:
        y = torch.cat([x.sin(), x]) * n
        return torch.relu(y.view(-1, x.size(1))) + 1

    found: list = []

    def keep(gm: fx.GraphModule, inputs: list):
        found.append((gm, list(inputs)))
        return gm.forward

    argand.compile(f, backend=keep, dynamic=True)(torch.ones(5, 6), 7)
    run, result = repro.minify_to_directory(*found[0], BackendCheck(needs_symbols))
    assert result.calls == ["torch.relu"] and result.verified
    assert "'varying': " in (run / "repro.py").read_text()
    module = repro.load_module(run / "repro.py")
    program = repro.program_of(module.Repro(), module.args)
    table = program.gm.meta["symbols"]
    sizes = program.placeholders[0].meta["sizes"]
    assert [table.hints[s] for s in table.symbols if s in sizes] == [
        n for n, s in zip(module.args[0].shape, sizes) if s in table.hints
    ]
    # the native compiler takes what was written as a graph for many sizes
    compiled = BackendCheck("native").compile(program.gm, program.inputs)
    for n in (3, 9):
        x = torch.randn(n, *module.args[0].shape[1:])
        assert argand.same(program.gm(x), compiled(x))


def test_new_processes_where_a_fork_is_not_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    from argand.debug.minify import Limits, attempts
    from argand.errors import ArgandError

    monkeypatch.setattr(attempts, "can_fork", lambda: False)
    gm, inputs = graph_for(lambda x: torch.relu(x), torch.ones(2))
    outcome = attempts.attempt(BackendCheck(refuses_relu), Program(gm, inputs), Limits())
    assert (outcome.kind, outcome.error, outcome.stage) == ("raised", "RuntimeError", "compile"), outcome
    outcome = attempts.attempt(BackendCheck("eager"), Program(gm, inputs), Limits())
    assert outcome.kind == "passed", outcome
    with pytest.raises(ArgandError, match="cannot be taken"):
        attempts.attempt(lambda gm, inputs: None, Program(gm, inputs), Limits())


def test_object_without_a_name_is_refused() -> None:
    graph = fx.Graph()
    graph.output((graph.call_function(lambda x: x, (graph.placeholder("x"),)),))
    with pytest.raises(NotCode):
        module_code(fx.GraphModule({}, graph))


def test_progress_is_plain_data(tmp_path: Path) -> None:
    writer = Writer(tmp_path, BackendCheck("eager"), Fingerprint("raised", "E", "s", "m"))
    writer.progress({"a": True}, 3, False)
    data = json.loads((tmp_path / "progress.json").read_text())
    assert data["tried"] == {"a": True} and Fingerprint(**data["wanted"]) == writer.wanted


def test_reproduction_that_needs_more_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What this process did before is not in the file, unless `repro_setup` says so."""
    monkeypatch.chdir(tmp_path)
    marker = "ARGAND_TEST_MARKER"
    monkeypatch.setattr(sys, marker, True, raising=False)
    gm, inputs = graph_for(lambda x: torch.relu(x), torch.ones(2))
    _, result = repro.minify_to_directory(gm, inputs, BackendCheck(fails_with_marker))
    assert result.verified is False and "NOT REPRODUCED" in capsys.readouterr().err
    with argand.config.patch(repro_setup=f"import sys\nsys.{marker} = True"):
        _, result = repro.minify_to_directory(gm, inputs, BackendCheck(fails_with_marker))
    assert result.verified is True and "NOT REPRODUCED" not in capsys.readouterr().err


def fails_with_marker(gm: fx.GraphModule, inputs: list) -> fx.GraphModule:
    if hasattr(sys, "ARGAND_TEST_MARKER"):
        raise RuntimeError("the marker is set")
    return gm


def test_later_calls_are_checked_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def wrong_above_one(gm: fx.GraphModule, inputs: list):
        return lambda *args: [torch.where(r > 1, r * 2, r) for r in gm(*args)]

    with argand.config.patch(repro_after="dynamo", repro_level=4):
        compiled = argand.compile(lambda x: x.sin() + x, backend=wrong_above_one)
        compiled(torch.zeros(3))
        with pytest.raises(argand.debug.accuracy.AccuracyError):
            compiled(torch.ones(3))
    assert "inputs.pt" in (only_run(tmp_path) / "repro.py").read_text() or only_run(tmp_path)

"""Errors: wrong arguments, exceptions of the program, failures of backends, bugs in argand."""

from __future__ import annotations

import copy
import pickle
import textwrap
import traceback
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import argand
import warm
from argand.errors import ArgandError, BackendCompilerFailed, ConfigError, InternalError, Unsupported
from helpers import CountingBackend, assert_same

X = torch.ones(3)


# ---------------------------------------------------------------------- wrong arguments

WRONG: list[tuple[str, Any, str]] = [
    ("compile int", lambda: argand.compile(5), "takes a function, method or module"),
    ("compile class", lambda: argand.compile(nn.Linear), "compile an instance"),
    ("compile backend", lambda: argand.compile(abs, backend="nativ"), "did you mean 'native'"),
    ("compile backend type", lambda: argand.compile(abs, backend=5), "a name or a callable"),
    ("compile mode", lambda: argand.compile(abs, mode="fast"), "known modes"),
    ("compile fullgraph", lambda: argand.compile(abs, fullgraph="yes"), "True or False"),
    ("compile dynamic", lambda: argand.compile(abs, dynamic=3), "None, True or False"),
    ("compile options", lambda: argand.compile(abs, options=[1]), "options"),
    ("compile both", lambda: argand.compile(abs, mode="max-autotune", options={"a": 1}), "mode and options"),
    ("disable int", lambda: argand.disable(5), "takes a callable"),
    ("disable recursive", lambda: argand.disable(recursive="no"), "recursive"),
    ("disable reason", lambda: argand.disable(reason=5), "reason"),
    ("explain int", lambda: argand.explain(5), "takes a function, method or module"),
    ("allow int", lambda: argand.allow_in_graph(5), "callable"),
    ("allow builtin", lambda: argand.allow_in_graph(len), "wrap it in a Python function"),
    ("constant int", lambda: argand.assume_constant_result(5), "callable"),
    ("register int", lambda: argand.register_backend(5), "a backend is a callable"),
    ("register taken", lambda: argand.register_backend(lambda gm, x: gm, name="eager"), "another name"),
    ("register name", lambda: argand.register_backend(lambda gm, x: gm, name=5), "name"),
    ("mark_dynamic int", lambda: argand.mark_dynamic(5, 0), "tensor"),
    ("mark_dynamic dim", lambda: argand.mark_dynamic(torch.ones(2), 3), "dim"),
    ("mark_static int", lambda: argand.mark_static("x"), "tensor"),
    ("stance", lambda: argand.set_stance("never"), "known stances"),
    ("error_on_graph_break", lambda: argand.error_on_graph_break("x"), "True or False"),
    ("compile_times repr", lambda: argand.compile_times(repr="html"), '"csv"'),
    ("compile_times aggregate", lambda: argand.compile_times(aggregate="yes"), "aggregate"),
    ("config name", lambda: setattr(argand.config, "cache_size_limits", 3), "did you mean cache_size_limit"),
    ("config type", lambda: setattr(argand.config, "cache_size_limit", "many"), "takes int, not str"),
    ("config read", lambda: argand.config.no_such_setting, "no setting"),
    ("patch", lambda: argand.config.patch(verbos=True).__enter__(), "did you mean verbose"),
]


@pytest.mark.parametrize("wrong, says", [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_wrong_arguments(wrong: Any, says: str) -> None:
    with pytest.raises(ConfigError) as info:
        wrong()
    text = str(info.value)
    assert says in text and "What to do:" in text, text
    assert isinstance(info.value, ValueError)


def test_failed_patch_changes_nothing() -> None:
    with pytest.raises(ConfigError), argand.config.patch(verbose=True, no_such=1):
        pass
    assert argand.config.verbose is False


# ---------------------------------------------------------------------- exceptions of the program


def shown(error: BaseException) -> list[str]:
    """Functions of the traceback from the compiled function on, argand's wrapper of modules left out."""
    entries = traceback.extract_tb(error.__traceback__)[1:]
    return [f"{entry.name}: {entry.line}" for entry in entries if not entry.filename.endswith("argand/api.py")]


def raised_by(fn: Any, *args: Any, backend: Any = "eager", **kwargs: Any) -> BaseException:
    try:
        argand.compile(fn, backend=backend, **kwargs)(*args)
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_exception_after_two_breaks() -> None:
    def inner(z):
        return z + torch.ones(7)

    def f(x):
        y = x + 1
        print(end="")
        y = y * 2
        print(end="")
        return inner(y)

    error = raised_by(f, X)
    assert shown(error) == ["f: return inner(y)", "inner: return z + torch.ones(7)"]
    assert type(error) is RuntimeError


def test_raise_statement() -> None:
    def f(x):
        if x.shape[0] == 3:
            raise KeyError("mine")
        return x

    assert shown(raised_by(f, X)) == ['f: raise KeyError("mine")']


def deep(x, i):
    return x[i]


def test_exception_of_a_compiled_operation_has_the_users_lines() -> None:
    def f(x, i):
        y = x * 2
        z = deep(y, i)
        return z + 1

    compiled = argand.compile(f, backend="eager")
    compiled(X, torch.tensor([1]))
    with pytest.raises(IndexError) as info:
        compiled(X, torch.tensor([7]))
    assert shown(info.value) == ["f: z = deep(y, i)", "deep: return x[i]"]


def test_exception_of_compiled_code_of_unknown_line() -> None:
    def f(x, i):
        y = x * 2
        argand.graph_break()
        y = y + 1  # the graph has let go of its input: it cannot be run again
        return y[i]

    error = raised_by(f, X.clone(), torch.tensor([7]), backend="native")
    assert isinstance(error, IndexError)
    package = str(Path(argand.__file__).parent)
    assert not any(entry.filename.startswith(package) for entry in traceback.extract_tb(error.__traceback__))
    assert 'backend="eager"' in error.__notes__[0]


def test_frames_of_inlined_calls_hold_no_caller() -> None:
    def f(x, i):
        x.mul_(1)
        return deep(x, i)

    error = raised_by(f, X.clone(), torch.tensor([7]))
    inner = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-1]
    assert inner.f_code.co_name == "deep" and inner.f_back is None and inner.f_locals == {}
    assert "return x[i]" in "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())


def test_exception_of_the_native_backend_has_its_line() -> None:
    def f(x, i):
        y = x * 2
        return y[i] + 1

    error = raised_by(f, X, torch.tensor([7]), backend="native")
    assert isinstance(error, IndexError) and not hasattr(error, "__notes__")
    assert shown(error)[-1] == "f: return y[i] + 1"


def test_verbose_keeps_everything() -> None:
    def f(x, i):
        x.mul_(1)
        return x[i] + 1

    with argand.config.patch(verbose=True):
        error = raised_by(f, X.clone(), torch.tensor([7]))
    assert "<eval_with_key>" in "".join(traceback.format_tb(error.__traceback__))


def test_modules_add_one_frame() -> None:
    module = nn.Linear(4, 4)
    with pytest.raises(RuntimeError) as info:
        argand.compile(module, backend="eager")(X)
    entries = traceback.extract_tb(info.value.__traceback__)[1:]
    assert [entry.name for entry in entries] == ["__call__", "forward"]


def test_cause_and_context_are_kept() -> None:
    def f(x):
        try:
            raise ValueError("first")
        except ValueError as error:
            raise TypeError("second") from error

    error = raised_by(f, X)
    assert isinstance(error, TypeError) and isinstance(error.__cause__, ValueError)


# ---------------------------------------------------------------------- fullgraph


def test_unsupported() -> None:
    def f(x):
        print("no")
        return x + 1

    error = raised_by(f, X, fullgraph=True)
    assert isinstance(error, Unsupported) and shown(error) == []
    text = str(error).replace(__file__, "FILE")
    assert "fullgraph=True" in text and 'print("no")' in text and "What to do: Move print out" in text


# ---------------------------------------------------------------------- backends


def failing_backend(gm: Any, inputs: Any) -> Any:
    raise ZeroDivisionError("no such kernel")


def plus(x):
    return x + 1


def test_backend_error() -> None:
    error = raised_by(plus, X, backend=failing_backend)
    assert isinstance(error, BackendCompilerFailed) and isinstance(error.__cause__, ZeroDivisionError)
    text = str(error)
    assert "backend='failing_backend'" in text and "ZeroDivisionError: no such kernel" in text
    assert "def plus(x):" in text and "suppress_errors" in text and 'backend="eager"' in text
    assert shown(error) == []


def test_backend_returns_no_callable() -> None:
    error = raised_by(plus, X, backend=lambda gm, inputs: 5)
    assert isinstance(error, BackendCompilerFailed) and "returned int, which cannot be called" in str(error)


def test_suppressed_error_is_summarised_once() -> None:
    with argand.config.patch(suppress_errors=True), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled = argand.compile(plus, backend=failing_backend)
        for _ in range(3):
            assert_same(X + 1, compiled(X))
    [warning] = caught
    text = str(warning.message)
    assert "plus (" in text and "runs eagerly, because of suppress_errors" in text and "no such kernel" in text
    assert "Traceback" not in text and warning.filename == __file__


def test_suppressed_errors_are_explained() -> None:
    from helpers import collected

    with argand.config.patch(suppress_errors=True), warnings.catch_warnings(), collected("graph_breaks") as events:
        warnings.simplefilter("ignore")
        argand.compile(plus, backend=failing_backend)(X)
    [event] = events
    assert event.data["reason"].kind == "compiling failed" and event.data["frame_skipped"] is True


# ---------------------------------------------------------------------- bugs in argand


@pytest.fixture
def bug(monkeypatch: pytest.MonkeyPatch) -> None:
    from argand.capture.interp.interpreter import Interpreter
    from argand.capture.objects import operators

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("an invariant does not hold")

    monkeypatch.setattr(operators, "truth", broken)
    monkeypatch.setattr(Interpreter, "truth", broken)  # Python 3.13 asks here


def needs_truth(x, n):
    y = x + 1
    if [n]:
        return y * 2
    return y


def test_internal_error_runs_eagerly_with_one_warning(bug: None) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled = argand.compile(needs_truth, backend="eager")
        for _ in range(2):
            assert_same(needs_truth(X, 1), compiled(X, 1))
    [warning] = caught
    text = str(warning.message)
    for part in (
        "needs_truth",
        "AssertionError: an invariant does not hold",
        "if [n]:",
        "Please report it",
        f"argand {argand.__version__}",
        f"torch {torch.__version__}",
        "Python 3.",
        "compile id [",
        "ARGAND_VERBOSE",
    ):
        assert part in text, text
    assert "Traceback" not in text


def test_internal_error_under_fullgraph(bug: None) -> None:
    error = raised_by(needs_truth, X, 1, fullgraph=True)
    assert isinstance(error, InternalError) and isinstance(error, ArgandError)
    assert error.where[-1].text == "if [n]:" and "Please report it" in error.remedy and "compile id [" in error.remedy


def test_internal_error_shows_in_explain(bug: None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        [reason] = argand.explain(needs_truth)(X, 1).break_reasons
    assert reason.kind == "error inside argand" and reason.where[-1].text == "if [n]:"


# ---------------------------------------------------------------------- habits with compiled modules


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        return self.dropout(self.fc(x)) + self.seen


def test_compiled_module_is_the_module() -> None:
    model = Net()
    compiled = argand.compile(model, backend="eager")
    assert compiled._orig_mod is model and compiled.fc is model.fc
    assert list(compiled.state_dict()) == [f"_orig_mod.{name}" for name in model.state_dict()]
    other = argand.compile(Net(), backend="eager")
    other.load_state_dict(compiled.state_dict())
    assert_same(model.fc.weight, other.fc.weight)
    assert [id(p) for p in compiled.parameters()] == [id(p) for p in model.parameters()]
    compiled.eval()
    assert not model.training and not model.dropout.training and not compiled.training
    assert_same(model(X), compiled(X))
    compiled.train()
    assert model.training and compiled.training
    compiled.tag = "here"
    assert model.tag == "here" and compiled.tag == "here"
    del compiled.tag
    assert not hasattr(model, "tag")
    compiled.seen.add_(1)
    assert_same(model.seen, torch.ones(1))
    with pytest.raises(AttributeError):
        compiled.no_such_attribute  # noqa: B018
    assert "Net(" in repr(compiled) and "fc" in dir(compiled)
    assert compiled.to(torch.float64) is compiled and model.fc.weight.dtype is torch.float64


def test_copies_of_compiled_modules() -> None:
    compiled = argand.compile(Net().eval(), backend="eager")
    for copied in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled)), copy.copy(compiled)):
        assert_same(compiled(X), copied(X))
        assert type(copied) is type(compiled)
    assert copy.deepcopy(compiled).fc is not compiled.fc
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(argand.compile(Net(), backend=CountingBackend()))


def test_hooks_of_the_wrapper_and_of_the_module_run() -> None:
    calls: list[str] = []
    model = Net().eval()
    compiled = argand.compile(model, backend="eager")
    compiled.register_forward_hook(lambda *args: calls.append("wrapper"))
    model.register_forward_hook(lambda *args: calls.append("module"))
    compiled(X)
    assert sorted(set(calls)) in (["module"], ["module", "wrapper"]) and calls


SCRIPT = """
import argand, torch
argand.hosts.tell_accelerate()
with argand.answer_torch_compile(backend="eager"):
    model = torch.nn.Linear(3, 3)
    model.compile()
    assert model(torch.ones(3)).shape == (3,)
    stance = torch.compiler.set_stance("force_eager")
    with stance:
        torch.compile(lambda x: x + 1)(torch.ones(3))
    torch.compiler.reset()
    assert argand.compile_times() == "argand has compiled nothing yet."
assert torch.compile.__module__ == "torch"
"""


def test_answered_programs(tmp_path: Path) -> None:
    script = tmp_path / "s.py"
    script.write_text(textwrap.dedent(SCRIPT))
    done = warm.run([script])
    assert done.returncode == 0, done.stderr

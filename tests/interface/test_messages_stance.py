"""What users can say about how compiled functions behave: stances, errors on graph breaks, filters, marks."""

from __future__ import annotations

import pytest
import torch

import argand
import warm
from argand.errors import ConfigError, RecompileForbidden, Unsupported
from helpers import CountingBackend, assert_same

X = torch.ones(3)


def breaks(x):
    y = x + 1
    print(end="")
    return y * 2


# ---------------------------------------------------------------------- set_stance


def test_force_eager() -> None:
    backend = CountingBackend()
    compiled = argand.compile(lambda x: x + 1, backend=backend)
    with argand.set_stance("force_eager"):
        assert_same(X + 1, compiled(X))
    assert not backend.graphs
    compiled(X)
    assert len(backend.graphs) == 1


def test_force_eager_does_not_use_compiled_code() -> None:
    ran: list[int] = []

    def backend(gm, inputs):
        def run(*args):
            ran.append(1)
            return gm(*args)

        return run

    compiled = argand.compile(torch.nn.Linear(3, 3), backend=backend)
    compiled(X)
    with argand.set_stance("force_eager"):
        compiled(X)
    assert len(ran) == 1


def test_eager_on_recompile() -> None:
    backend = CountingBackend()
    compiled = argand.compile(lambda x: x * 2, backend=backend, dynamic=False)
    compiled(X)
    with argand.set_stance("eager_on_recompile"):
        assert_same(X * 2, compiled(X))
        assert_same(torch.ones(5) * 2, compiled(torch.ones(5)))
    assert len(backend.graphs) == 1


def test_fail_on_recompile() -> None:
    def f(x):
        return x * 2

    compiled = argand.compile(f, backend="eager", dynamic=False)
    with argand.set_stance("fail_on_recompile"):
        with pytest.raises(RecompileForbidden, match="has not been compiled"):
            compiled(X)
    compiled(X)
    with argand.set_stance("fail_on_recompile"):
        assert_same(X * 2, compiled(X))
        with pytest.raises(RecompileForbidden) as info:
            compiled(torch.ones(5))
    assert "x.size()[0] was 3, is now 5" in str(info.value) and "mark_dynamic" in info.value.remedy
    assert isinstance(info.value, RuntimeError)


def test_stance_as_decorator_and_call() -> None:
    backend = CountingBackend()
    compiled = argand.compile(lambda x: x - 1, backend=backend)

    @argand.set_stance("force_eager")
    def eager(x):
        return compiled(x)

    assert_same(X - 1, eager(X))
    assert not backend.graphs
    argand.set_stance("force_eager")
    compiled(X)
    assert not backend.graphs
    argand.set_stance("default")
    compiled(X)
    assert len(backend.graphs) == 1


def test_unknown_stance() -> None:
    with pytest.raises(ConfigError, match="force_eager"):
        argand.set_stance("lazy")


def test_stance_inside_compiled_code_breaks() -> None:
    def f(x):
        with argand.set_stance("default"):
            x = x + 1
        return x

    explanation = argand.explain(f)(X)
    assert "change of the stance" in [reason.kind for reason in explanation.break_reasons]
    assert_same(f(X), argand.compile(f, backend="eager")(X))


# ---------------------------------------------------------------------- error_on_graph_break


def test_config_error_on_graph_break() -> None:
    with argand.config.patch(error_on_graph_break=True), pytest.raises(Unsupported, match="print"):
        argand.compile(breaks, backend="eager")(X)
    assert_same(breaks(X), argand.compile(breaks, backend="eager")(X))


def test_around_a_call_and_as_decorator() -> None:
    with argand.error_on_graph_break(True), pytest.raises(Unsupported):
        argand.compile(breaks, backend="eager")(X)
    argand.reset()

    @argand.compile(backend="eager")
    @argand.error_on_graph_break(True)
    def strict(x):
        return breaks(x)

    with pytest.raises(Unsupported):
        strict(X)
    argand.reset()
    with argand.config.patch(error_on_graph_break=True), argand.error_on_graph_break(False):
        assert_same(breaks(X), argand.compile(breaks, backend="eager")(X))


def test_inside_compiled_code() -> None:
    def f(x, strict_part):
        y = x + 1
        with argand.error_on_graph_break(True):
            y = y * 3
            with argand.error_on_graph_break(False):
                print(end="")
            if strict_part:
                print(end="")
            y = y - 1
        print(end="")
        return y

    assert_same(f(X, False), argand.compile(f, backend="eager")(X, False))
    with pytest.raises(Unsupported) as info:
        argand.compile(f, backend="eager")(X, True)
    assert info.value.where[-1].lineno == f.__code__.co_firstlineno + 7
    # The setting is as before, although the `with` was left by argand's own error.
    assert_same(breaks(X), argand.compile(breaks, backend="eager")(X))


def test_fullgraph_is_stronger() -> None:
    with argand.error_on_graph_break(False), pytest.raises(Unsupported):
        argand.compile(breaks, backend="eager", fullgraph=True)(X)


def test_exceptions_of_the_program_stay_its_own() -> None:
    def f(x):
        return x + torch.ones(7)

    with argand.error_on_graph_break(True), pytest.raises(RuntimeError, match="must match"):
        argand.compile(f, backend="eager")(X)


# ---------------------------------------------------------------------- function filter


def test_debug_function_takes_several_and_qualified_names() -> None:
    class Net:
        def forward(self, x):
            return x + 1

    def other(x):
        return x * 2

    for names, wanted in (("other", 1), ("Net.forward", 1), ("other, forward", 2), ("nothing", 0)):
        argand.reset()
        backend = CountingBackend()
        with argand.config.patch(debug_function=names):
            argand.compile(Net().forward, backend=backend)(X)
            argand.compile(other, backend=backend)(X)
        assert len(backend.graphs) == wanted, names


def test_debug_function_applies_after_a_break_and_is_forgotten() -> None:
    backend = CountingBackend()
    compiled = argand.compile(breaks, backend=backend)
    with argand.config.patch(debug_function="something else"):
        compiled(X)
    assert not backend.graphs
    with argand.config.patch(debug_function="breaks"):
        compiled(X)
    assert len(backend.graphs) == 2


# ---------------------------------------------------------------------- torch.compiler's marks


def graphs_of(fn) -> tuple[int, int]:
    explanation = argand.explain(fn)(X)
    assert_same(fn(X), argand.compile(fn, backend="eager")(X))
    return explanation.graph_count, explanation.op_count


def test_torch_compiler_disable() -> None:
    @torch.compiler.disable
    def never(x):
        return helper(x) + 1

    @torch.compiler.disable(recursive=False)
    def not_itself(x):
        return helper(x) + 1

    def helper(x):
        return x * 5

    assert graphs_of(lambda x: never(x * 2) * 3) == (2, 2)
    assert graphs_of(lambda x: not_itself(x * 2) * 3) == (3, 3)
    assert graphs_of(never) == (0, 0)


def test_torch_compiler_disable_says_why() -> None:
    @torch.compiler.disable(reason="it talks to a server")
    def never(x):
        return x + 1

    [reason] = argand.explain(lambda x: never(x) * 2)(X).break_reasons
    assert "it talks to a server" in reason.explanation


def test_torch_compiler_marks() -> None:
    calls: list[int] = []

    @torch.compiler.assume_constant_result
    def constant():
        calls.append(1)
        return 7

    def leaf(x):
        return x * 2

    torch.compiler.allow_in_graph(leaf)
    compiled = argand.compile(lambda x: leaf(x) * constant(), backend="eager", fullgraph=True)
    compiled(X)
    assert_same(X * 14, compiled(X))
    assert len(calls) == 1


@pytest.mark.parametrize("question", [torch.compiler.is_compiling, argand.is_compiling])
def test_is_compiling(question) -> None:
    def f(x):
        return x + 1 if question() else x - 1

    assert_same(X - 1, f(X))
    assert_same(X + 1, argand.compile(f, backend="eager", fullgraph=True)(X))
    assert argand.is_compiling() is False


def test_compiled_by_torch_before() -> None:
    """A function or module that torch.compile wrapped is compiled by argand as what it was."""

    def f(x):
        return x * 3

    module = torch.nn.Linear(3, 3)
    backend = CountingBackend()
    assert_same(X * 3, argand.compile(torch.compile(f, backend="eager"), backend=backend)(X))
    by_torch = torch.compile(module, backend="eager")
    assert_same(module(X), argand.compile(by_torch, backend=backend)(X))
    assert_same(module(X) + 1, argand.compile(lambda x: by_torch(x) + 1, backend=backend, fullgraph=True)(X))
    assert len(backend.graphs) == 3


def test_torch_graph_break_and_error_on_graph_break() -> None:
    import torch._dynamo as dynamo

    def f(x):
        x = x + 1
        dynamo.graph_break()
        return x * 2

    assert graphs_of(f) == (2, 2)

    def strict(x):
        with dynamo.error_on_graph_break(True):
            return breaks(x)

    with pytest.raises(Unsupported):
        argand.compile(strict, backend="eager")(X)


# ---------------------------------------------------------------------- substitute_in_graph


SUBSTITUTE = """
import operator, torch, argand

@argand.substitute_in_graph(operator.indexOf, skip_signature_check=True)
def index_of(items, wanted):
    for i, item in enumerate(items):
        if item == wanted:
            return i + 100
    raise ValueError

compiled = argand.compile(lambda x: x * operator.indexOf([1, 2, 3], 2), backend="eager", fullgraph=True)
assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 101.0))
"""


def test_substitute_in_graph() -> None:
    """In a process of its own, for what a process substitutes it does for good, and it keeps no outcomes then."""
    warm.run(["-c", SUBSTITUTE], check=True)


def test_substitute_in_graph_checks() -> None:
    with pytest.raises(ConfigError, match="parameters"):
        argand.substitute_in_graph(len)(lambda a, b: 1)
    with pytest.raises(ConfigError, match="Python function"):
        argand.substitute_in_graph(len)(abs)
    with pytest.raises(ConfigError, match="takes a function"):
        argand.substitute_in_graph(5)  # type: ignore[arg-type]

"""What `troubleshooting.txt` describes and this version has, example by example."""

from __future__ import annotations

import os
import textwrap
import warnings

import pytest
import torch

import argand
import warm
from argand.errors import BackendCompilerFailed, ConfigError, Unsupported
from helpers import CountingBackend, assert_same, collected


def toy_with_print(a, b):
    x = a / (torch.abs(a) + 1)
    print("woo")
    if b.sum() < 0:
        b = b * -1
    return x * b


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    explanation = argand.explain(toy_with_print)(torch.randn(10), torch.rand(10))
    assert capsys.readouterr().out == "woo\n"
    assert explanation.graph_count == 3
    assert explanation.graph_break_count == 2
    assert explanation.op_count == 6  # abs, add, truediv; sum, lt; mul
    assert len(explanation.graphs) == 3 and len(explanation.ops_per_graph) == 3 and len(explanation.out_guards) == 3
    text = str(explanation)
    assert 'print("woo")' in text and "if b.sum() < 0:" in text and __file__ in text


def test_explain_unpacks_as_in_the_guide() -> None:
    explanation, out_guards, graphs, ops_per_graph, break_reasons, explanation_verbose = argand.explain(
        toy_with_print, torch.randn(10), torch.rand(10)
    )
    assert explanation == "argand made 3 graphs, with 2 graph breaks and 6 ops."
    lines = [line.strip() for line in explanation_verbose.splitlines()]
    assert lines.index('print("woo")') < lines.index("if b.sum() < 0:")
    assert len(out_guards) == len(graphs) == len(ops_per_graph) == 3 and len(break_reasons) == 2
    assert torch.abs in ops_per_graph[0]


def test_compile_profiler() -> None:
    def my_model(x=None):
        return torch.ones(3) * 2

    with argand.CompileProfiler() as prof:
        profiler_model = argand.compile(my_model, backend=prof)
        profiler_model()
        profiler_model(5)
        text = prof.report()
    assert "Graph breaks" in text and "Recompiles" in text


def test_compile_times() -> None:
    argand.compile(toy_with_print, backend="eager")(torch.randn(10), torch.rand(10))
    assert "capture_frame" in argand.compile_times()


def test_backend_error_example() -> None:
    """`torch.ops.aten._foobar` has a lowering that fails; aot_eager runs the op as it is (tests/debug minifies it)."""
    model = torch.nn.Sequential(*[torch.nn.Linear(20, 20) for _ in range(5)])

    def test_backend_error():
        y = torch.ones(20, 20)
        x = torch.ones(20, 20)
        z = x + y
        a = torch.ops.aten._foobar(z)
        return model(a)

    with torch.no_grad():
        with pytest.raises(BackendCompilerFailed, match="_foobar"):
            argand.compile(test_backend_error)()
        assert_same(test_backend_error(), argand.compile(test_backend_error, backend="aot_eager")())


def test_missing_operator_is_the_programs_error() -> None:
    def f():
        return torch.ops.aten.no_such_operator(torch.ones(20, 20))

    with pytest.raises(AttributeError) as want:
        f()
    with pytest.raises(AttributeError) as got:
        argand.compile(f)()
    assert str(got.value) == str(want.value)
    assert got.traceback[1].lineno == want.traceback[1].lineno


def test_log_level_and_verbose_are_settings() -> None:
    import logging

    with argand.config.patch(verbose=True, log_level=logging.INFO):
        assert argand.config.verbose is True and argand.config.log_level == logging.INFO
    assert argand.config.log_level == logging.WARNING


def test_fullgraph_raises() -> None:
    with pytest.raises(Unsupported) as info:
        argand.compile(toy_with_print, fullgraph=True)(torch.randn(10), torch.rand(10))
    assert 'print("woo")' in str(info.value) and "toy_with_print" in str(info.value)

    def branch(b):
        if b.sum() < 0:
            return -b
        return b

    with pytest.raises(Unsupported, match="data-dependent"):
        argand.compile(branch, fullgraph=True)(torch.rand(3))


def test_tensor_as_dict_key() -> None:
    def f():
        y = torch.ones(20, 20)
        z = {y: 5}
        return z

    got = argand.compile(f, backend="eager")()
    [(key, value)] = got.items()
    assert value == 5 and torch.equal(key, torch.ones(20, 20))


def toy_compiler(gm: torch.fx.GraphModule, _):
    for node in gm.graph.nodes:
        if node.target == torch.relu:
            raise AssertionError("toy_compiler cannot do relu")
    return gm


def relu_after_add():
    x, y = torch.ones(20, 20), torch.ones(20, 20)
    z = x + y
    return torch.relu(z)


def test_toy_compiler() -> None:
    with pytest.raises(BackendCompilerFailed, match="toy_compiler cannot do relu") as info:
        argand.compile(relu_after_add, backend=toy_compiler)()
    assert "toy_compiler" in str(info.value) and isinstance(info.value.__cause__, AssertionError)
    assert_same(torch.full((3,), 2.0), argand.compile(lambda x: x + 1, backend=toy_compiler)(torch.ones(3)))


def test_suppress_errors() -> None:
    with argand.config.patch(suppress_errors=True), warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        assert_same(torch.full((20, 20), 2.0), argand.compile(relu_after_add, backend=toy_compiler)())


def test_unknown_backend_lists_the_known() -> None:
    with pytest.raises(ConfigError, match="native"):
        argand.compile(relu_after_add, backend="nativ")()


def test_cache_size_limit() -> None:
    def f(x, n):
        return x * n

    backend = CountingBackend()
    compiled = argand.compile(f, backend=backend, dynamic=False)
    with argand.config.patch(cache_size_limit=2), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(2, 8):
            assert_same(f(torch.ones(n), n), compiled(torch.ones(n), n))
    assert len(backend.graphs) == 2
    assert len([w for w in caught if "cache_size_limit" in str(w.message)]) == 1


def test_debug_function() -> None:
    def wanted(x):
        return x + 1

    def other(x):
        return x * 2

    with argand.config.patch(debug_function="wanted"):
        backend = CountingBackend()
        argand.compile(other, backend=backend)(torch.ones(2))
        assert not backend.graphs
        argand.compile(wanted, backend=backend)(torch.ones(2))
        assert len(backend.graphs) == 1


def test_module_built_inside() -> None:
    def test_model(x):
        model = torch.nn.Sequential(torch.nn.Linear(10, 10), torch.nn.LayerNorm(10), torch.nn.ReLU())
        return model(x)

    x = torch.ones(10, 10)
    torch.manual_seed(3)
    want = test_model(x)
    torch.manual_seed(3)
    with argand.config.patch(fallback_random=True):  # its weights are drawn in the graph
        assert_same(want, argand.compile(test_model)(x))


def test_backends_narrow_an_error_down() -> None:
    """The procedure of the guide: the same program under "eager", "aot_eager" and "native"."""
    model = torch.nn.Sequential(*[torch.nn.Linear(20, 20) for _ in range(3)])

    def f(x, y):
        return model(torch.relu(x + y))

    x, y = torch.randn(4, 20), torch.randn(4, 20)
    with torch.no_grad():
        for backend in ("eager", "aot_eager", "native"):
            assert_same(f(x, y), argand.compile(f, backend=backend, fullgraph=True)(x, y))
            argand.reset()


def test_environment_variables_are_read(tmp_path) -> None:
    script = tmp_path / "s.py"
    script.write_text(
        textwrap.dedent("""
        import argand
        print(argand.config.verbose, argand.config.debug_function, argand.config.suppress_errors)
        """)
    )
    env = {"ARGAND_VERBOSE": "1", "TORCHDYNAMO_DEBUG_FUNCTION": "f", "ARGAND_SUPPRESS_ERRORS": "0"}
    env |= {name: value for name, value in os.environ.items() if name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")}
    done = warm.run([script], env=env, check=True)
    assert done.stdout.split() == ["True", "f", "False"]


def test_events_name_the_stages() -> None:
    with collected("span_end") as events, torch.no_grad():
        argand.compile(lambda x: torch.relu(x) + 1)(torch.randn(4, 4))
    stages = {e.stage for e in events}
    assert {"capture", "lower", "schedule"} <= stages, stages

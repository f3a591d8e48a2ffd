"""The interpreter's own contract: opcode tables, root runs and breaks, laziness, what never passes for the program's error."""
# ruff: noqa: UP031 - percent formatting is one of the uses tested

from __future__ import annotations

import pytest

import warm
from argand.bytecode.opcodes import SUPPORTED_VERSIONS, all_opnames
from argand.capture.facts.exceptions import InternalFailure, ObservedException
from argand.capture.interp.opcodes import _table
from argand.capture.interp.optable import UNSUPPORTED
from argand.errors import GraphBreak

from .interpret import interpret, interpreter_of, run_root


@pytest.mark.parametrize("version", SUPPORTED_VERSIONS)
def test_every_opcode_is_handled_or_refused_with_a_reason(version):
    assert all_opnames(version) - set(_table(version)) == set()
    assert all(len(reason) > 10 for _first, _last, reason in UNSUPPORTED.values())


def test_root_returns():
    exit = run_root(lambda a, b: [a, b], 1, 2)
    assert (exit.kind, exit.value) == ("return", [1, 2])


def test_root_raises():
    exit = run_root(lambda a: a["k"], {})
    assert exit.kind == "raise" and isinstance(exit.exc, KeyError)


def test_arguments_that_are_not_read_stay_unread():
    from argand.capture.facts.frames import LazyLocal

    def f(a, b):
        return a

    exit = run_root(f, 1, 2)
    assert exit.frame.fast[0] == 1 and type(exit.frame.fast[1]) is LazyLocal


def test_a_break_names_the_instruction_and_the_users_line_and_can_be_stopped_at():
    def helper():
        print("x")

    def f(a):
        b = a + 1
        helper()
        return b

    with pytest.raises(GraphBreak) as caught:
        run_root(f, 1)
    found = caught.value
    assert found.reason.kind == "print"
    assert [line.function for line in found.reason.where] == ["f", "helper"]
    assert found.reason.where[-1].text == 'print("x")'
    again = run_root(f, 1, break_at={found.sequence: None})
    assert again.kind == "break" and again.instruction is not None
    assert again.instruction.opname.startswith("CALL")
    assert again.frame.locals_by_name()["b"] == 2


def test_a_conditional_jump_is_a_branch():
    def f(a):
        if a:
            return 1
        return 2

    for number in range(20):
        exit = run_root(f, True, break_at={number: None})
        if exit.kind == "branch":
            assert exit.frame.stack[-1] is True
            return
    pytest.fail("no branch found")


def test_generator_functions_are_no_roots():
    def f():
        yield 1

    with pytest.raises(GraphBreak) as caught:
        run_root(f)
    assert caught.value.skip_frame


def test_async_is_refused_with_a_kind():
    async def f():
        return 1

    def g():
        return f()

    with pytest.raises(GraphBreak) as caught:
        run_root(g)
    assert caught.value.reason.kind == "async function"


def test_depth_is_limited():
    def f(n):
        return f(n + 1)

    with pytest.raises(GraphBreak) as caught:
        run_root(f, 0)
    assert caught.value.reason.kind == "inlining too deep" and caught.value.reason.hints


def test_unknown_native_code_ends_the_graph():
    import resource

    with pytest.raises(GraphBreak) as caught:
        interpret(lambda: resource.getpagesize())
    assert caught.value.reason.kind == "call of native code that is not known"


def test_a_bug_inside_a_callback_is_not_the_programs_exception():
    class Broken:
        def __getattr__(self, name):
            raise ZeroDivisionError

    with interpreter_of(lambda: None) as interp:
        interp.policies = Broken()  # type: ignore[assignment]
        with pytest.raises(InternalFailure):
            interp.enter(lambda: 1, (), {})


def test_exceptions_pass_through_native_code_with_their_context():
    def f():
        def key(x):
            try:
                {}[x]
            except KeyError:
                raise ValueError(x)

        sorted([1], key=key)

    with interpreter_of(f) as interp, pytest.raises(ObservedException) as caught:
        interp.call(f, ())
    assert isinstance(caught.value.value, ValueError)
    assert isinstance(caught.value.value.__context__, KeyError)
    assert caught.value.value.__context__.__context__ is None


@pytest.mark.parametrize(
    "use",
    [
        lambda t: len(t), lambda t: t == "tensor(2.)", lambda t: "2" in t, lambda t: t + "!", lambda t: "!" + t, lambda t: t[0],
        lambda t: ",".join([t]), lambda t: {t: 1}, lambda t: t.upper(), lambda t: "a".replace("a", t), lambda t: bool(t),
        lambda t: "%s" % t, lambda t: f"{t}", lambda t: sorted([t, "a"]), lambda t: str([t]), lambda t: t, lambda t: [t],
        lambda t: {"k": (t,)}, lambda t: str(ValueError(t)), lambda t: isinstance(t, str), lambda t: type(t).__name__,
        lambda t: t is None, lambda t: f"<{t}>" is not None, lambda t: hash(t) == hash(t), lambda t: list(t)[:2], lambda t: max(t, "a"),
    ],
)  # fmt: skip
def test_text_of_a_tensor_is_never_taken_for_something_else(use):
    torch = pytest.importorskip("torch")
    import argand

    def f(x):
        return use(f"{x.sum()}"), x + 1

    x = torch.ones(2)
    ours, eager = argand.compile(f, backend="eager")(x), f(x)
    assert ours[0] == eager[0] and torch.equal(ours[1], eager[1])


def test_text_of_a_tensor_may_be_dropped():
    torch = pytest.importorskip("torch")
    import argand

    def f(x):
        message = f"sum is {x.sum()}"
        if x.shape[0] > 5:
            raise ValueError(message)
        return x + 1

    x = torch.ones(2)
    assert torch.equal(argand.compile(f, backend="eager", fullgraph=True)(x), x + 1)


def test_torchs_tables_are_there_before_the_first_question():
    """In a new process, the first call of a torch function must already be answered by the table."""
    pytest.importorskip("torch")
    code = (
        "import torch, argand\n"
        "def f(x): return x + 1, torch.compiler.is_compiling()\n"
        "print(argand.compile(f, backend='eager', fullgraph=True)(torch.ones(1))[1])"
    )
    done = warm.run(["-c", code], check=True)
    assert done.stdout.strip() == "True"

"""What a compile leaves behind in the process once it is forgotten: nothing.

`python tests/fuzz/residues.py --cycles 10000` is the long run, which watches the memory of the process too.
"""

from __future__ import annotations

import gc
import json
import linecache
import sys
import types
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers import CountingBackend

import argand
import sweeps
import warm
from argand._core import _C
from argand.bytecode.per_code import PerCode

sys.path.insert(0, str(Path(__file__).parents[2] / "fuzz"))

import residues

CYCLES = 25 if sweeps.WHOLE else 15


def grown(backend: str, train: bool, kind: str) -> dict[str, Any]:
    """What cycles in a process of its own leave: in this one, other tests may have left what grows with them."""
    command = [residues.__file__, "--backend", backend, "--cycles", str(CYCLES), "--told", kind, *["--train"] * train]
    found: dict[str, Any] = json.loads(warm.run(command, check=True, imported="compiler").stdout.splitlines()[-1])
    return found


def few(found: dict[str, Any], blocks: int) -> bool:
    """Whether it grew by less than half an object a cycle, and by at most so many blocks of memory."""
    numbers = {name: value for name, value in found.items() if name != "kinds"}
    return all(value < (blocks * CYCLES if name == "blocks" else CYCLES / 2) for name, value in numbers.items())


@pytest.mark.parametrize(
    ("backend", "train", "kind"),
    [("eager", False, "program"), ("eager", False, "new"), ("aot_eager", True, "program"), ("native", True, "program"),
     ("native", False, "new")],
)  # fmt: skip
def test_compiling_and_resetting_leaves_nothing(backend: str, train: bool, kind: str) -> None:
    found = grown(backend, train, kind)
    assert few(found, blocks=36), found


def names(namespace: dict[str, Any]) -> set[str]:
    return {name for name in namespace if name.startswith(("__compiled_fn", "__resume_at"))}


def test_names_in_globals_go_with_the_code_that_reads_them() -> None:
    fn = residues.new_program()
    compiled = argand.compile(fn, backend="eager", dynamic=False)
    compiled(torch.ones(4, 4), torch.ones(4, 4))
    first = names(fn.__globals__)
    assert any(name.startswith("__compiled_fn") for name in first)
    assert any(name.startswith("__resume_at") for name in first)
    compiled(torch.ones(3, 3), torch.ones(3, 3))  # the second version shares the resume function
    both = names(fn.__globals__)
    assert len(both) > len(first)
    argand.reset()
    gc.collect()
    assert names(fn.__globals__) == set()
    assert compiled(torch.ones(4, 4), torch.ones(4, 4)).item() == fn(torch.ones(4, 4), torch.ones(4, 4)).item()
    assert names(fn.__globals__)


def test_shared_resume_function_stays_while_one_version_lives() -> None:
    fn = residues.new_program()
    compiled = argand.compile(fn, backend="eager", dynamic=False)

    class Scale:
        value = 2.0

    def reads(x: torch.Tensor, scale: Any) -> torch.Tensor:
        y = x * scale.value
        print(end="")
        return y + 1

    reads = types.FunctionType(reads.__code__, fn.__globals__)
    compiled = argand.compile(reads, backend="eager")
    fn.__globals__["torch"] = torch
    kept, dying = Scale(), Scale()
    assert compiled(torch.ones(2), kept).tolist() == [3, 3]
    dying.value = 5.0
    assert compiled(torch.ones(2), dying).tolist() == [6, 6]
    ref = weakref.ref(dying)
    del dying
    gc.collect()
    assert ref() is None
    for value in (7.0, 8.0, 2.0):
        kept.value = value
        assert compiled(torch.ones(2), kept).tolist() == [value + 1] * 2


def test_reset_inside_of_a_compiled_call() -> None:
    calls: list[int] = []

    @argand.disable
    def forget() -> None:
        calls.append(len(calls))
        argand.reset()
        gc.collect()

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        forget()
        z = y + 1
        forget()
        return z * x

    compiled = argand.compile(program, backend="eager")
    for _ in range(3):
        assert compiled(torch.ones(2)).tolist() == [3, 3]
    assert len(calls) == 6


def test_name_that_the_program_has_overwritten_is_left_alone() -> None:
    fn = residues.new_program()
    argand.compile(fn, backend="eager")(torch.ones(4, 4), torch.ones(4, 4))
    name = next(iter(names(fn.__globals__)))
    fn.__globals__[name] = "mine"
    _C.reset_all()
    gc.collect()
    assert fn.__globals__[name] == "mine"


@pytest.mark.parametrize(("backend", "train"), [("eager", False), ("aot_eager", True), ("native", False)])
def test_functions_that_die_take_everything_with_them(backend: str, train: bool) -> None:
    """Without `argand.reset()`: the code object, what was compiled of it, and its resume functions."""
    found = grown(backend, train, "mortal")
    assert few(found, blocks=60), found


def test_what_a_dead_function_was_inlined_into_goes_on() -> None:
    def outer(x: torch.Tensor, inner: Any) -> torch.Tensor:
        y = inner(x)
        print(end="")
        return y + 1

    compiled = argand.compile(outer, backend="eager")
    refs = []
    for value in range(4):
        namespace: dict[str, Any] = {"value": value}
        exec("def inner(x):\n    return x * value + 1\n", namespace)
        inner = namespace.pop("inner")
        assert compiled(torch.ones(2), inner).tolist() == [value + 2] * 2
        refs.append(weakref.ref(inner.__code__))
    del inner
    assert compiled(torch.ones(2), lambda x: x * 7).tolist() == [8, 8]
    argand.reset()
    gc.collect()
    assert [ref() for ref in refs] == [None] * 4


def test_a_loop_of_resume_functions_whose_user_function_is_gone() -> None:
    namespace: dict[str, Any] = {"torch": torch, "forget": lambda: namespace.clear()}
    exec(
        "def program(x):\n"
        "    for i in range(3):\n"
        "        x = x + i\n"
        "        if i == 1:\n"
        "            forget()\n"
        "    return x * 2\n",
        namespace,
    )
    compiled = argand.compile(namespace["program"], backend="eager")
    x = torch.ones(2)
    try:
        compiled(x)
    except NameError:
        pass  # range() may be looked up again, where there are no globals any more
    gc.collect()


def test_facts_about_classes_die_with_them() -> None:
    from argand.capture.facts import callables, classify, kinds, typefacts
    from argand.capture.sizes import subclasses
    from argand.capture.world import native_reads

    asked = [
        classify.handling_of_type, native_reads.kind, kinds._namespace_place, typefacts.finds_attributes_its_own_way,
        typefacts.sets_attributes_its_own_way, callables._only_c,
    ]  # fmt: skip
    known = [next(c.cell_contents for c in fn.__closure__ if type(c.cell_contents) is dict) for fn in asked]
    gc.collect()
    before = [len(each) for each in known]
    classes = []
    for number in range(20):
        cls = type(f"Made{number}", (), {"held": number})
        for fn in asked:
            fn(cls)
        tensors = type("Sub", (torch.Tensor,), {})
        subclasses.why_not(tensors)
        classes += [cls, tensors]
    assert all(len(each) >= number + 20 for each, number in zip(known, before))
    refs = [weakref.ref(each) for each in classes]
    del cls, tensors, classes
    gc.collect()
    assert [ref() for ref in refs] == [None] * 40
    assert [len(each) for each in known] == before


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_function_with_globals_of_its_own_is_freed_without_a_reset(backend: str) -> None:
    def run() -> weakref.ref[Any]:
        namespace: dict[str, Any] = {}
        exec("def program(x, y):\n    return x @ y\n", namespace)
        argand.compile(namespace["program"], backend=backend)(torch.ones(4, 4), torch.ones(4, 4))
        return weakref.ref(namespace["program"])

    program = run()
    gc.collect()
    assert program() is None


def test_what_is_forgotten_with_code_is_forgotten_by_c_code() -> None:
    # An interrupt that is due when objects go is raised in the first Python code that runs, and ignored there.
    backend = CountingBackend()

    argand.compile(residues.new_program(), backend=backend)(torch.ones(4, 4), torch.ones(4, 4))
    forward = vars(type(backend.graphs[0]))["forward"]
    filename = forward.__code__.co_filename
    assert filename in linecache.cache
    kept = PerCode[int]()
    kept.set(forward.__code__, 1)
    assert len(kept) == 1
    found = [*weakref.getweakrefs(forward.__code__), *weakref.getweakrefs(forward._argand_source)]
    assert len(found) >= 4
    for reference in found:
        callback = reference.__callback__
        assert callback is None or isinstance(callback.func, types.BuiltinFunctionType)
    del forward, found, reference, callback
    backend.graphs.clear()
    argand.reset()
    gc.collect()
    assert filename not in linecache.cache and len(kept) == 0


FIRST_CALLS = """
import gc, sys, weakref
import torch, argand

class Box: pass

def plain(x, box):
    return x * 2 + 1

def handles(x, box):
    try:
        return x + {}["missing"]
    except KeyError:
        return x - 1

def breaks(x, box):
    if x.sum() > 0:
        return x * 2
    return x * 3

def raises(x, box):
    raise ValueError(x)

def differentiates(x, box):
    y = x.clone().requires_grad_()
    (y * y).sum().backward()
    return y.grad

def call(function):
    box, x = Box(), torch.ones(3)
    try:
        argand.compile(function)(x, box)
    except ValueError:
        pass
    return weakref.ref(box), weakref.ref(x)

for function in (globals()[name] for name in sys.argv[1:]):
    held = call(function)
    gc.collect()
    print(function.__name__, [each() is None for each in held])
"""


@pytest.mark.parametrize("first", ["plain", "handles", "breaks", "raises", "differentiates"])
def test_first_call_of_a_process_lets_its_arguments_go(first: str) -> None:
    """What is imported for it, or made once, keeps nothing of that call."""
    lines = warm.run(["-c", FIRST_CALLS, first], check=True).stdout.splitlines()
    assert lines == [f"{first} [True, True]"]

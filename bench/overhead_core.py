"""Nanoseconds spent in argand's C core: regions, the hook, guards, launches. `python bench/overhead_core.py`.

Each figure is the least of several rounds, less the empty loop. Tensor figures need torch and are left out without it.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable
from typing import Any

from argand._core import _C

ROUNDS = 7
KEY = object()


def best_ns(fn: Callable[[int], Any], count: int) -> float:
    """Least time of one of `count` repetitions, in ns."""
    fn(count)
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        fn(count)
        best = min(best, (time.perf_counter_ns() - start) / count)
    return best


def calls(fn: Callable[..., Any], *args: Any) -> Callable[[int], None]:
    def loop(count: int) -> None:
        for _ in range(count):
            fn(*args)

    return loop


def empty(*args: Any) -> None:
    return None


def report(name: str, ns: float) -> None:
    print(f"{name:58s} {ns:9.1f} ns")


def target(x: Any) -> Any:
    return x


def replacement(x: Any) -> Any:
    return x


def bench_hook() -> None:
    def answer(info: _C.FrameInfo) -> Any:
        if info.code is target.__code__:
            tree = _C.GuardTree()
            tree.check(tree.child(0, "local", 0), "type", int, label="x")
            return _C.Entry(replacement.__code__, tree, KEY)
        return None

    plain = best_ns(calls(target, 1), 200_000)
    report("plain call", plain)
    region = _C.Region(answer, KEY, target)
    region(1)
    report("Region: enter, guard, redirect, leave (less plain call)", best_ns(calls(region, 1), 200_000) - plain)
    args = (1,)
    report(
        "run_with_callback of the same (less plain call)",
        best_ns(calls(_C.run_with_callback, answer, KEY, target, args), 200_000) - plain,
    )
    builtin = _C.Region(answer, KEY, abs)
    both = best_ns(calls(builtin, 1), 200_000)
    report("Region around a builtin: enter and leave", both - best_ns(calls(abs, 1), 200_000))

    def inside(count: int) -> None:
        for _ in range(count):
            target(1)

    _C.skip_code(inside.__code__)
    nested = best_ns(lambda n: _C.run_with_callback(answer, KEY, inside, (n,)), 200_000)
    report("nested redirected frame (less plain call)", nested - best_ns(inside, 200_000))
    _C.reset_code(target.__code__)
    _C.skip_code(target.__code__)
    nested = best_ns(lambda n: _C.run_with_callback(answer, KEY, inside, (n,)), 200_000)
    report("nested skipped frame (less plain call)", nested - best_ns(inside, 200_000))
    _C.reset_all()


def per_item(build: Callable[[_C.GuardTree, int], tuple[Any, ...]], count: int) -> float:
    """ns of one more guard: a tree of `count` guards against an empty one."""
    tree = _C.GuardTree()
    args = build(tree, count)
    if tree.evaluate(args, globals()) is not True:
        raise SystemExit(f"guards do not hold: {tree.evaluate(args, globals())}")
    nothing = best_ns(calls(_C.GuardTree().matches, ()), 50_000)
    space = globals()
    return (best_ns(calls(tree.matches, args, space), max(100, 200_000 // count)) - nothing) / count


def dict_items(tree: _C.GuardTree, n: int) -> tuple[Any, ...]:
    values = {f"key{i}": object() for i in range(n)}
    root = tree.child(0, "local", 0)
    for key, value in values.items():
        tree.check(tree.child(root, "dict_item", key), "id", value, label=key)
    return (values,)


def module_attributes(tree: _C.GuardTree, n: int) -> tuple[Any, ...]:
    class Module:
        pass

    modules = [Module() for _ in range(n)]
    root = tree.child(0, "local", 0)
    for i, module in enumerate(modules):
        module.training = False  # type: ignore[attr-defined]
        node = tree.child(root, "sequence_item", i)
        tree.check(node, "type", Module, label="type")
        space = tree.child(node, "instance_dict")
        tree.check(tree.child(space, "dict_item", "training"), "id", False, label="training")
    return (modules,)


def list_ints(tree: _C.GuardTree, n: int) -> tuple[Any, ...]:
    root = tree.child(0, "local", 0)
    for i in range(n):
        tree.check(tree.child(root, "sequence_item", i), "equals", i, label=str(i))
    return (list(range(n)),)


def attributes(tree: _C.GuardTree, n: int) -> tuple[Any, ...]:
    class Thing:
        pass

    thing = Thing()
    root = tree.child(0, "local", 0)
    for i in range(n):
        setattr(thing, f"a{i}", i)
        tree.check(tree.child(root, "attr", f"a{i}"), "equals", i, label=str(i))
    return (thing,)


def python_calls(tree: _C.GuardTree, n: int) -> tuple[Any, ...]:
    node = tree.child(0, "local", 0)
    for i in range(n):
        tree.check(0, "python", lambda x: x > 0, [node], label=str(i))
    return (1,)


def bench_guards() -> None:
    report("dict item + id", per_item(dict_items, 100))
    report("module: item, type, __dict__, training", per_item(module_attributes, 100))
    report("list item + equals int", per_item(list_ints, 100))
    report("attr + equals int", per_item(attributes, 20))
    report("python(lambda)", per_item(python_calls, 10))


def guard_module(tree: _C.GuardTree, node: int, module: Any) -> None:
    """What capture asks of an nn.Module: class, training, no hooks, the same submodules, parameters of a kind."""
    tree.check(node, "type", type(module), label="type")
    space = tree.child(node, "instance_dict")
    tree.check(tree.child(space, "dict_item", "training"), "id", module.training, label="training")
    for hooks in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
        tree.check(tree.child(space, "dict_item", hooks), "len", 0, label=hooks)
    parameters = tree.child(space, "dict_item", "_parameters")
    for name, value in module._parameters.items():
        child = tree.child(parameters, "dict_item", name)
        if value is None:
            tree.check(child, "is_none", label=name)
        else:
            tree.check(child, "tensor", *_C.tensor_guard_args(value), label=name)
    children = tree.child(space, "dict_item", "_modules")
    tree.check(children, "dict_keys", tuple(module._modules), label="modules")
    for name, value in module._modules.items():
        guard_module(tree, tree.child(children, "dict_item", name), value)


def bench_model() -> None:
    import torch

    def block() -> Any:
        nn = torch.nn
        return nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 8))

    model = torch.nn.Sequential(*[block() for _ in range(180)])
    tree = _C.GuardTree()
    guard_module(tree, tree.child(0, "local", 0), model)
    modules, parameters = len(list(model.modules())), len(list(model.parameters()))
    what = f"model of {modules} modules, {parameters} parameters, {tree.num_guards} guards"
    report(what, best_ns(calls(tree.matches, (model,)), 300))
    report(
        "the same with an attribute set on each module before",
        best_ns(calls(lambda: (touch(model), tree.matches((model,)))), 30) - best_ns(calls(touch, model), 30),
    )
    report("the same, walked (evaluate)", best_ns(calls(tree.evaluate, (model,)), 100))


def touch(model: Any) -> None:
    for module in model.modules():
        module.__dict__["touched"] = object()


def bench_tensors() -> None:
    try:
        import torch
    except ImportError:
        print("(no torch: tensor figures left out)")
        return
    _C.set_exchange_api(torch.Tensor.__dlpack_c_exchange_api__, torch.Tensor)

    def tensors(make: Callable[[int], Any]) -> Callable[[_C.GuardTree, int], tuple[Any, ...]]:
        def build(tree: _C.GuardTree, n: int) -> tuple[Any, ...]:
            values = [make(i) for i in range(n)]
            root = tree.child(0, "local", 0)
            for i, value in enumerate(values):
                node = tree.child(root, "sequence_item", i)
                tree.check(node, "tensor", *_C.tensor_guard_args(value), label=str(i))
            return (values,)

        return build

    report("tensor guard (float32, 2 dims)", per_item(tensors(lambda i: torch.zeros(i + 1, 4)), 100))
    report("tensor guard (parameter)", per_item(tensors(lambda i: torch.nn.Parameter(torch.zeros(i + 1, 4))), 100))
    report("tensor guard (sparse, by attributes)", per_item(tensors(lambda i: torch.eye(i + 1).to_sparse()), 10))
    bench_model()
    t = torch.zeros(4)
    report("tensor_data_ptr", best_ns(calls(_C.tensor_data_ptr, t), 100_000) - best_ns(calls(empty, t), 100_000))
    c_function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
    libc = ctypes.CDLL(None)
    address = ctypes.cast(libc.labs, ctypes.c_void_p).value  # takes and leaves a register: as good as an empty kernel
    assert address and c_function
    for count in (0, 1, 3, 10):
        kernel = _C.Kernel(address, "labs", count, 2)
        report(f"Kernel: {count} tensors, 2 ints", best_ns(calls(kernel, *[t] * count, 1, 2), 100_000))


if __name__ == "__main__":
    print(f"CPython {sys.version.split()[0]}")
    bench_hook()
    bench_guards()
    bench_tensors()

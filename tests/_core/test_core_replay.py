"""Recordings: `matches` answers from what it found last, `evaluate` always walks the tree; they must agree, whatever changes."""

from __future__ import annotations

import collections
import copy
import gc
import os
import random
import sys
import threading
import types
import weakref
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argand._core import _C


class Module:
    """Looks like nn.Module to guards: state in __dict__ and in dicts inside it."""

    def __init__(self) -> None:
        self.training = False
        self.scale = 0.5
        self._modules: dict[str, Any] = {}
        self._parameters: dict[str, Any] = {}
        self.hooks: dict[Any, Any] = {}
        self.ordered: Any = collections.OrderedDict(p=1, q=2)


class Twin:
    """A class that an object of Module can be turned into."""


class Many(Module):
    """More attributes than CPython keeps in shared keys."""

    def __init__(self) -> None:
        super().__init__()
        for i in range(40):
            setattr(self, f"a{i}", i)


def build(depth: int, width: int, cls: type = Module) -> Module:
    module = cls()
    module.config = (1, 2.5, ["x", 3], {"k": (4, 5)})
    module._parameters["weight"] = object.__new__(Twin)
    module._parameters["bias"] = None
    module.listed = [float(str(0.25 + i)) for i in range(3)]
    module.fn = lambda a, b=depth: a
    for i in range(width if depth else 0):
        module._modules[f"m{i}"] = build(depth - 1, width, cls)
    return module


def guard_value(tree: _C.GuardTree, node: int, value: Any, name: str) -> None:
    if isinstance(value, Module | Twin):
        guard_object(tree, node, value, name)
    elif type(value) is dict:
        tree.check(node, "dict_keys", tuple(value), label=f"{name} keys")
        tree.check(node, "len", len(value), label=f"{name} len")
        for key, item in value.items():
            guard_value(tree, tree.child(node, "dict_item", key), item, f"{name}[{key!r}]")
    elif type(value) is collections.OrderedDict:
        tree.check(node, "dict_keys", tuple(value), label=f"{name} keys")
        tree.check(node, "len", len(value), label=f"{name} len")
        tree.check(node, "has_key", "p", label=f"{name} has p")
        tree.check(tree.child(node, "dict_key", 0), "equals", next(iter(value)), label=f"{name} first key")
    elif type(value) in (list, tuple):
        tree.check(node, "type", type(value), label=f"{name} type")
        tree.check(node, "len", len(value), label=f"{name} len")
        for i, item in enumerate(value):
            guard_value(tree, tree.child(node, "sequence_item", i), item, f"{name}[{i}]")
    elif isinstance(value, types.FunctionType):
        tree.check(tree.child(node, "func_code"), "id", value.__code__, label=f"{name} code")
        guard_value(tree, tree.child(node, "func_defaults"), value.__defaults__, f"{name} defaults")
    elif value is None:
        tree.check(node, "is_none", label=f"{name} none")
    else:
        tree.check(node, "equals", value, label=f"{name} value")


def guard_object(tree: _C.GuardTree, node: int, value: Any, name: str) -> None:
    tree.check(node, "type", type(value), label=f"{name} type")
    if not isinstance(value, Module):
        tree.check(node, "id", value, label=f"{name} identity")
        return
    space = tree.child(node, "instance_dict")
    tree.check(space, "not_has_key", "forward", label=f"{name} has no own forward")
    for key in ("training", "scale", "_modules", "_parameters", "hooks", "config", "listed", "fn", "ordered"):
        guard_value(tree, tree.child(space, "dict_item", key), value.__dict__[key], f"{name}.{key}")


def make_tree(root: Module) -> _C.GuardTree:
    tree = _C.GuardTree()
    guard_value(tree, tree.child(0, "local", 0), root, "self")
    tree.check(tree.child(0, "local", 1), "type", int, label="x")
    return tree


def agree(tree: _C.GuardTree, *args: Any) -> bool:
    answers = {tree.matches(args) for _ in range(3)}
    walked = tree.evaluate(args)
    assert answers == {walked is True}, walked
    return walked is True


def modules_of(root: Module) -> list[Module]:
    return [root, *[m for child in root._modules.values() if isinstance(child, Module) for m in modules_of(child)]]


# ---- single changes -----------------------------------------------------------------------------------------------

CHANGES: dict[str, Any] = {
    "attribute": lambda m: setattr(m, "training", True),
    "float": lambda m: setattr(m, "scale", float("0.75")),
    "delete": lambda m: delattr(m, "training"),
    "forward": lambda m: setattr(m, "forward", 1),
    "class": lambda m: setattr(m, "__class__", type("Module", (Module,), {})),
    "dict replaced": lambda m: setattr(m, "__dict__", {**m.__dict__, "scale": 0.25}),
    "dict emptied": lambda m: m.__dict__.clear(),
    "hook": lambda m: m.hooks.update({1: 2}),
    "hook setdefault": lambda m: m.hooks.setdefault("k"),
    "parameter": lambda m: m._parameters.update(weight=Twin()),
    "parameter removed": lambda m: m._parameters.pop("bias"),
    "parameter set": lambda m: m._parameters.__setitem__("bias", 0),
    "order": lambda m: m._parameters.update(weight=m._parameters.pop("weight")),
    "list item": lambda m: m.listed.__setitem__(1, float("9.5")),
    "list grown": lambda m: m.listed.append(1),
    "inner list": lambda m: m.config[2].append(1),
    "inner dict": lambda m: m.config[3].update(k=(4, 6)),
    "tuple": lambda m: setattr(m, "config", (1, 2.25, ["x", 3], {"k": (4, 5)})),
    "defaults": lambda m: setattr(m.fn, "__defaults__", (99,)),
    "code": lambda m: setattr(m.fn, "__code__", (lambda a, b: b).__code__),
    "value of another type": lambda m: setattr(m, "scale", 1),
    "moved": lambda m: m.ordered.move_to_end("p"),
    "ordered grown": lambda m: m.ordered.update(r=3),
    "ordered replaced": lambda m: setattr(m, "ordered", collections.OrderedDict(q=1, p=2)),
    "ior": lambda m: m.__dict__.__ior__({"training": 1}),
}
SAME: dict[str, Any] = {
    "other attribute": lambda m: setattr(m, "step", random.random()),
    "other attribute deleted": lambda m: (setattr(m, "step", 1), delattr(m, "step")),
    "same value": lambda m: setattr(m, "scale", float("0.5")),
    "there and back": lambda m: (setattr(m, "training", True), setattr(m, "training", False)),
    "dict copied": lambda m: setattr(m, "__dict__", dict(m.__dict__)),
    "inner dict copied": lambda m: setattr(m, "_parameters", dict(m._parameters)),
    "equal list": lambda m: setattr(m, "listed", [float(str(x)) for x in m.listed]),
    "equal config": lambda m: setattr(m, "config", copy.deepcopy(m.config)),
    "hook and back": lambda m: (m.hooks.update({1: 2}), m.hooks.clear()),
    "ordered copied": lambda m: setattr(m, "ordered", m.ordered.copy()),
    "moved and back": lambda m: (m.ordered.move_to_end("p"), m.ordered.move_to_end("q")),
    "odd key elsewhere": lambda m: m.__dict__.update({5: 6}),
}


@pytest.mark.parametrize("cls", [Module, Many])
@pytest.mark.parametrize("name", [*CHANGES, *SAME])
def test_each_change_is_seen(name: str, cls: type) -> None:
    for depth in (0, 1, 2):
        root = build(2, 2, cls)
        tree = make_tree(root)
        assert all(tree.matches((root, i)) for i in range(5))
        target = modules_of(root)[{0: 0, 1: 1, 2: 3}[depth]]
        (CHANGES | SAME)[name](target)
        assert agree(tree, root, 1) is (name in SAME), name
        assert agree(tree, root, "no int") is False


def test_a_counter_on_the_root_keeps_the_recording() -> None:
    root = build(1, 2)
    tree = make_tree(root)
    for i in range(50):
        root.step = i
        assert agree(tree, root, i)


def test_another_root_object() -> None:
    one = build(1, 2)
    tree = _C.GuardTree()
    node = tree.child(0, "local", 0)
    space = tree.child(node, "instance_dict")
    tree.check(node, "type", Module, label="type")
    for i, key in enumerate(("training", "scale", "config", "listed", "fn", "hooks", "_modules")):
        tree.check(tree.child(space, "dict_item", key), "not_none", label=f"{i}")
    tree.check(tree.child(space, "dict_item", "hooks"), "len", 0, label="hooks")
    tree.check(tree.child(tree.child(space, "dict_item", "config"), "sequence_item", 0), "equals", 1, label="config")
    other, bad = build(0, 0), build(0, 0)
    bad.config = (2,)
    for i in range(60):
        assert agree(tree, one) and agree(tree, other) and not agree(tree, bad)


def test_addresses_that_are_used_again() -> None:
    root = build(1, 2)
    tree = make_tree(root)
    assert all(tree.matches((root, 1)) for _ in range(4))
    hits = 0
    for i in range(300):
        target = root._modules["m1"]
        value = float("0.5") if i % 2 else float("0.125")
        old = id(target.scale)
        target.scale = None
        target.scale = value + 0.0
        hits += id(target.scale) == old
        assert agree(tree, root, 1) is (value == 0.5)
    for i in range(100):
        old = id(root._modules["m0"])
        del root._modules["m0"], root._modules["m1"]
        root._modules["m0"] = build(0, 0)
        root._modules["m1"] = build(0, 0)
        hits += id(root._modules["m0"]) == old
        assert agree(tree, root, 1) is False  # the identity of the parameters
    assert hits > 0 or "ARGAND_SANITIZER" in os.environ  # a sanitizer keeps freed memory apart


def test_recordings_hold_nothing() -> None:
    root = build(1, 3)
    tree = make_tree(root)
    assert all(tree.matches((root, 1)) for _ in range(5))
    refs = [weakref.ref(m) for m in modules_of(root)]
    counts = [sys.getrefcount(m) for m in modules_of(root)]
    for _ in range(50):
        assert tree.matches((root, 1))
    assert counts == [sys.getrefcount(m) for m in modules_of(root)]
    del root
    gc.collect()
    assert [ref() for ref in refs] == [None] * 4
    assert tree.dead and tree.matches((build(1, 3), 1)) is False


def test_impure_checks_run_each_time_and_may_change_the_world() -> None:
    root = build(1, 2)
    calls: list[Any] = []

    def look(value: Any) -> bool:
        calls.append(value)
        if len(calls) % 7 == 0:
            root._modules.clear()
            root._modules.update(m0=build(0, 0), m1=build(0, 0))
        return True

    tree = _C.GuardTree()
    node = tree.child(0, "local", 0)
    inner = tree.child(tree.child(node, "instance_dict"), "dict_item", "_modules")
    for name in ("m0", "m1"):
        child = tree.child(inner, "dict_item", name)
        tree.check(child, "type", Module, label=name)
        space = tree.child(child, "instance_dict")
        tree.check(tree.child(space, "dict_item", "scale"), "equals", 0.5, label=f"{name} scale")
        tree.check(tree.child(space, "dict_item", "scale"), "call", look, True, label=f"{name} look")
        tree.check(tree.child(child, "attr", "training"), "equals", False, label=f"{name} training")
        tree.check(tree.child(space, "dict_item", "config"), "call", lambda c: look(c), True, label=f"{name} config")
    for i in range(60):
        before = len(calls)
        assert tree.matches((root,)) is True
        assert len(calls) - before == 4 or len(calls) // 7 > before // 7  # the world changed meanwhile: looked at again


def test_relations_among_recorded_and_fresh_values() -> None:
    root = build(1, 3)
    tree = make_tree(root)
    space = tree.child(tree.child(0, "local", 0), "instance_dict")
    inner = tree.child(space, "dict_item", "_modules")
    nodes = [tree.child(inner, "dict_item", f"m{i}") for i in range(3)]
    x = tree.child(0, "local", 1)
    tree.check(0, "distinct", nodes, label="distinct modules")
    tree.check(0, "distinct", [*nodes, x], label="distinct from x")
    tree.check(0, "python", lambda m, x: m is not x, [nodes[0], x], label="python")
    y = tree.child(0, "local", 2)
    tree.check(y, "same_object", nodes[1], label="same")
    m1 = root._modules["m1"]
    assert all(agree(tree, root, 5, m1) for _ in range(4))
    assert not agree(tree, root, 5, root._modules["m2"])
    assert tree.evaluate((root, 5, root))[1] == "same"
    assert agree(tree, root, 6, m1)


def test_keyboard_interrupt_during_a_replay() -> None:
    root = build(1, 2)
    armed: list[int] = []

    def look(value: Any) -> bool:
        if armed:
            raise KeyboardInterrupt
        return True

    tree = make_tree(root)
    space = tree.child(tree.child(0, "local", 0), "instance_dict")
    tree.check(tree.child(space, "dict_item", "scale"), "call", look, True, label="look")
    assert all(tree.matches((root, 1)) for _ in range(4))
    armed.append(1)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            tree.matches((root, 1))
    armed.clear()
    assert agree(tree, root, 1)


def test_trees_shared_by_threads() -> None:
    root = build(1, 3)
    tree = make_tree(root)
    space = tree.child(tree.child(0, "local", 0), "instance_dict")

    def switch(value: Any) -> bool:
        event.wait(0.0002)
        return True

    event = threading.Event()
    tree.check(tree.child(space, "dict_item", "scale"), "call", switch, True, label="switch")
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for i in range(60):
                if seed == 0:
                    root._modules["m1"].step = i
                    root._modules["m2"].hooks = {}
                assert tree.matches((root, i))
                assert not tree.matches((root, "s"))
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert errors == []


def test_building_on_after_recording() -> None:
    root = build(1, 2)
    tree = make_tree(root)
    assert all(tree.matches((root, 1)) for _ in range(5))
    tree.check(tree.child(0, "local", 1), "equals", 7, label="late")
    assert not agree(tree, root, 1) and agree(tree, root, 7)


# ---- many changes -------------------------------------------------------------------------------------------------

steps = st.lists(
    st.tuples(st.integers(0, 6), st.sampled_from([*CHANGES, *SAME]), st.booleans()),
    min_size=1,
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(steps, st.booleans(), st.booleans())
def test_any_sequence_of_changes(sequence: list[tuple[int, str, bool]], many: bool, keep_old: bool) -> None:
    root = build(2, 2, Many if many else Module)
    tree = make_tree(root)
    assert all(tree.matches((root, i)) for i in range(4))
    kept: list[Any] = []
    for which, name, undo in sequence:
        found = modules_of(root)
        target = found[which % len(found)]
        saved = dict(target.__dict__)
        saved_class = type(target)
        inner = {k: copy.copy(v) for k, v in saved.items() if type(v) in (dict, list, collections.OrderedDict)}
        if keep_old:
            kept.append((saved, inner))
        try:
            (CHANGES | SAME)[name](target)
        except (AttributeError, KeyError, TypeError, IndexError):
            pass  # an earlier change has taken away what this one changes
        agree(tree, root, 1)
        if undo:
            if saved_class is not type(target):
                target.__class__ = saved_class
            target.__dict__.clear()
            target.__dict__.update(saved)
            for key, value in inner.items():
                current = target.__dict__[key]
                current.clear()
                current.update(value) if isinstance(current, dict) else current.extend(value)
            agree(tree, root, 1)
        if "_modules" not in root.__dict__ or not isinstance(root.__dict__["_modules"], dict):
            return
        if any("_modules" not in m.__dict__ for m in _reachable(root)):
            return


def _reachable(root: Module) -> list[Module]:
    found = [root]
    for m in found:
        found.extend(c for c in m.__dict__.get("_modules", {}).values() if isinstance(c, Module))
    return found

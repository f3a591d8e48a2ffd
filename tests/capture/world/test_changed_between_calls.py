"""Programs whose objects and classes change between calls: every read of captured code is guarded, whoever makes it."""

from __future__ import annotations

import collections
import collections.abc
import copy
import importlib
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand
import sweeps
from capture.agreement import Agreeing

# ---- objects with slots, copied


def slotted() -> type:
    class Slots:
        __slots__ = ("a", "b", "maybe")

        def __init__(self, a: Any, b: Any = 2.5) -> None:
            self.a, self.b = a, b

        def __repr__(self) -> str:
            return f"Slots({self.a}, {getattr(self, 'b', None)}, {getattr(self, 'maybe', None)})"

    return Slots


def copied(x: torch.Tensor, o: Any) -> Any:
    return x * 2, copy.copy(o), copy.deepcopy(o), sorted(n for n in dir(type(o)) if "slot" in n)


@pytest.mark.parametrize("when", ["before", "between"])
def test_slot_that_a_property_hides(when: str) -> None:
    cls: Any = slotted()
    check = Agreeing(copied)
    o = cls(1)
    if when == "between":
        check(o)
    cls.b = property(lambda self: 2)
    assert "no setter" in str(check(o))
    cls.b = property(lambda self: 2, lambda self, value: None)
    check(o)


@pytest.mark.parametrize(
    "change",
    [
        lambda cls: setattr(cls, "__slots__", ("a",)),
        lambda cls: setattr(cls, "__slotnames__", ["b"]),
        lambda cls: setattr(cls, "__slotnames__", None),
        lambda cls: cls.__slotnames__.append("repeated"),
        lambda cls: cls.__slotnames__.remove("a"),
        lambda cls: setattr(cls, "a", 3),
    ],
)
def test_slots_that_copyreg_noted(change: Callable[[Any], Any]) -> None:
    cls: Any = slotted()
    check = Agreeing(copied)
    check(cls(1))
    o = cls(4, 5)
    change(cls)
    check(o)
    check(o)


def test_objects_with_fields_of_c_code_are_not_copied_in_python() -> None:
    import weakref

    class Holder:
        def method(self) -> None:
            pass

    kept = Holder()
    check = Agreeing(lambda x, o: (x * 2, copy.copy(o)))
    assert "cannot pickle" in str(check(weakref.WeakMethod(kept.method)))


# ---- fields of str.format


class Plain:
    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)


@pytest.mark.parametrize(
    "text,name",
    [("{0.a}", ""), ("{0.a:>4}", ""), ("{o.a!r}", "o"), ("{0.inner[k].a}", ""), ("{0:{1.a}}", "width")],
)
def test_fields_of_a_format_are_read_under_guards(text: str, name: str) -> None:
    def program(x: torch.Tensor, o: Any) -> Any:
        if name == "width":
            return x * 2, text.format(3, o)
        return x * 2, text.format(o=o) if name else str.format(text, o)

    check = Agreeing(program)
    o = Plain(inner={"k": Plain(a=1)})
    check(o)
    for value in (5, 6, "b", None, 2.5):
        o.a = value
        o.inner["k"].a = value
        check(o)
    del o.a, o.inner["k"].a
    check(o)
    o.inner.clear()
    check(o)
    Plain.a = 7  # type: ignore[attr-defined]
    try:
        check(o)
    finally:
        del Plain.a  # type: ignore[attr-defined]


def test_item_of_a_list_in_a_format() -> None:
    check = Agreeing(lambda x, items: (x * 2, "{0[0]}-{0[1].a}".format(items)))
    items = [1, Plain(a=2)]
    check(items)
    items[0] = 3
    check(items)
    items[1].a = 4
    check(items)
    items.pop()
    check(items)


# ---- attributes past `__getattribute__`


class Every:
    def __init__(self, v: Any) -> None:
        self.v = v

    def __getattribute__(self, name: str) -> Any:
        return None


def raw(x: torch.Tensor, o: Any) -> Any:
    return x * (2 + object.__getattribute__(o, "v"))


@pytest.mark.parametrize("dynamic", [None, True])
def test_namespace_of_an_object_that_hides_it(dynamic: bool | None) -> None:
    check = Agreeing(raw, dynamic)
    for v in (1.5, 2.0, 2.5, torch.ones(4), torch.zeros(3, 1)):
        check(Every(v))


def test_namespace_that_the_class_comes_to_hide() -> None:
    class Later:
        def __init__(self, v: Any) -> None:
            self.v = v

    check = Agreeing(raw)
    for v in (1.5, 2.0, 2.5):
        check(Later(v))
    Later.__getattribute__ = lambda self, name: -1  # type: ignore[method-assign]
    for v in (4, torch.ones(4), 6.5):
        check(Later(v))


# ---- inputs whose names are spelled alike


def test_inputs_spelled_alike() -> None:
    def program(x: torch.Tensor, a: Any, a_b: Any) -> Any:
        return x * a.b_c + a_b.c

    check = Agreeing(program)
    for n in (1.5, 2.5, 3.5):
        check(Plain(b_c=n), Plain(c=n + 1))
    check(Plain(b_c=torch.ones(4)), Plain(c=torch.zeros(3, 4)))


def test_cell_read_by_itself_and_by_the_function() -> None:
    def closing(held: Any) -> Any:
        return lambda k=1.5: held + k

    def program(x: torch.Tensor, o: Any) -> Any:
        t = x + o.v(2)
        for i in range(2):
            t = t + o.v.__closure__[0].cell_contents * i
        return t

    check = Agreeing(program)
    for n in (7, 6.0, 2.5, 3.5):
        check(types.SimpleNamespace(v=closing(n)))


# ---- where an earlier call raised


def test_another_way_through_a_function_that_raised() -> None:
    """The number of the instruction that raised is another instruction's when the function goes another way."""

    def program(x: torch.Tensor, o: Any) -> Any:
        t, out = x * 1.0, []
        try:
            t = t + o.u
        except Exception as error:
            out.append((type(error).__name__, str(error)))
        return t, out

    check = Agreeing(program)
    o = Plain(u=torch.ones(2, 4))
    check(o)
    check(lambda: 2)
    o.u = 1
    check(o)


# ---- containers with a `__len__` that is none


class NoLength(dict):  # type: ignore[type-arg]
    pass


@pytest.mark.filterwarnings("error:argand. capturing")
def test_dict_without_a_length(monkeypatch: pytest.MonkeyPatch) -> None:
    check = Agreeing(lambda x, o: (x * 2, dict(o)))
    check(NoLength(a=2.0))
    monkeypatch.setattr(NoLength, "__len__", None, raising=False)
    check(NoLength(a=2.0, k=1.0))


# ---- names of tensors


def named(x: torch.Tensor, o: Any) -> Any:
    return x * 2, dir(o)


class Kind(torch.Tensor):
    note_of_class = 1


@pytest.mark.parametrize(
    "make", [lambda: torch.ones(2), lambda: torch.nn.Parameter(torch.ones(2)), lambda: torch.ones(2).as_subclass(Kind)]
)
def test_names_of_a_tensor_with_attributes(make: Callable[[], Any]) -> None:
    check = Agreeing(named)
    o = make()
    assert "'note'" not in str(check(o))
    o.note = 1
    assert "'note'" in str(check(o))
    o.another, o.view = 2, 3
    check(o)
    del o.note, o.view
    check(o)


def test_names_of_a_tensor_that_gets_attributes() -> None:
    def program(x: torch.Tensor, o: Any) -> Any:
        t = x * 2
        t.note = 1  # type: ignore[attr-defined]
        return t, "note" in dir(t), "note" in dir(x), len(dir(t)) - len(dir(x))

    Agreeing(program)(None)


# ---- sizes made of tensors


@pytest.mark.parametrize(
    "values",
    [
        torch.tensor([True, False]),
        torch.tensor([2, 3]),
        [torch.tensor(1), 2],
        torch.tensor([1.5]),
        [1, "a"],
        range(3),
        5,
    ],
)
def test_size_of_what_tensors_hold(values: Any) -> None:
    def program(x: torch.Tensor, v: Any) -> Any:
        t = x * 2
        try:
            return t, torch.Size(v)
        except Exception as error:
            return t, type(error), str(error)

    Agreeing(program)(values)


# ---- methods handed on


class Base:
    def method(self) -> Any:
        return 1


class Derived(Base):
    def method(self) -> Any:  # has a closure: the cell of its class
        return super().method() + 1


@argand.disable
def told(method: Any) -> Any:
    return method(), method.__func__ is Derived.method


def test_function_of_a_class_stays_the_same_function() -> None:
    Agreeing(lambda x, o: (x * 2, told(o.method)))(Derived())


# ---- numpy


@pytest.mark.parametrize("dynamic", [None, True])
def test_number_that_varies_in_a_list_given_to_numpy(dynamic: bool | None) -> None:
    import numpy as np

    def program(x: torch.Tensor, n: Any, items: Any) -> Any:
        return x * 2, np.sum([n]), np.sum(items), np.float64(n), np.add(n, 1), np.array([n, [n][0]]).dtype

    check = Agreeing(program, dynamic)
    for n in (0.5, 6.0, 7.0, 8, 9):
        check(n, [n])


@pytest.mark.parametrize("exponent", [-1, 0, 0.5, 1, 2, 3, 2.0, True])
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int64", "float32", "float64"])
def test_power_of_an_array(dtype: str, exponent: Any) -> None:
    """The operator is not always the function."""
    import numpy as np

    for base in (np.array([1, 1]).astype(dtype), np.array(1).astype(dtype)):
        Agreeing(lambda x, a: a**exponent)(base)
        Agreeing(lambda x, a: pow(a, exponent))(base)
        Agreeing(lambda x, a: np.power(a, exponent))(base)


def test_method_of_a_masked_array() -> None:
    import numpy as np

    check = Agreeing(lambda x, a: x + a.mean())
    check(np.ma.array([1.0, 2.0], mask=[0, 1]))


# ---- patterns


def matched(x: torch.Tensor, o: Any) -> Any:
    match o:
        case [a, *_]:
            return x * 2, "sequence", a
        case {"k": k}:
            return x * 2, "mapping", k
        case _:
            return x * 2, "other"


@pytest.mark.parametrize("abstract", [collections.abc.Sequence, collections.abc.Mapping])
def test_class_that_is_registered_as_a_sequence_or_mapping(abstract: Any) -> None:
    class Parts:
        def __init__(self) -> None:
            self.held = [1, 2]

        def __getitem__(self, index: Any) -> Any:
            return self.held[index]

        def __len__(self) -> int:
            return 2

        def get(self, key: Any, default: Any = None) -> Any:
            return 7 if key == "k" else default

    class Derived(Parts):
        pass

    check = Agreeing(matched)
    for _ in range(4):
        assert "other" in check(Parts())
        check(Derived())
    abstract.register(Parts)
    for _ in range(4):
        assert "other" not in check(Parts())
        check(Derived())


def test_array_in_a_pattern() -> None:
    import numpy as np

    check = Agreeing(matched)
    check(np.ones(2))
    check(np.float32(1.0))
    check(torch.ones(2))


# ---- texts of objects


class Counting:
    texts = 0

    def __init__(self, v: Any) -> None:
        self.v = v

    def __repr__(self) -> str:
        Counting.texts += 1
        return "counting"

    __str__ = __repr__


def test_text_of_an_object_is_not_asked_for_by_messages(caplog: pytest.LogCaptureFixture) -> None:
    """What a guard that failed found is told without running the program's `__repr__`, also within containers."""

    def program(x: torch.Tensor, o: Any) -> Any:
        return x * 2, o is held[0], isinstance(o, Counting), [o] == held, bool(o)

    held: list[Any] = [Counting(1)]
    compiled = argand.compile(program, backend="eager")
    for o in (held[0], Counting(2), None, 3, (Counting(4),), [Counting(5)], {"k": Counting(6)}, Counting(7)):
        compiled(torch.ones(2), o)
    assert Counting.texts == 0


def test_metaclass_that_reads_classes_and_calls_them() -> None:
    class Meta(type):
        def __call__(cls, *args: Any) -> Any:
            return super().__call__(*args)

    class Made(metaclass=Meta):
        pass

    check = Agreeing(lambda x, o: (x * 2, type(Made()).__name__))
    check(None)
    Meta.__getattribute__ = lambda cls, name: 5  # type: ignore[assignment]
    check(None)


# ---- copies of dicts, methods of methods, imports


def dict_copied(x: torch.Tensor, d: Any) -> Any:
    return x * 2, list(dict.items(d.copy()))


def joined(x: torch.Tensor, d: Any) -> Any:
    return x * 2, list(dict.items(d | {"z": 1})), list(dict.items({"z": 1} | d))


@pytest.mark.parametrize(
    ("program", "base", "name", "first"),
    sweeps.combinations(
        [dict_copied, joined],
        [dict, collections.OrderedDict, collections.defaultdict],
        ["__iter__", "__getitem__", "__setitem__", "keys"],
        [True, False],
    ),
)
def test_dict_whose_class_gets_a_method_of_its_own(program: Any, base: Any, name: str, first: bool) -> None:
    methods: dict[str, Callable[..., Any]] = {
        "__iter__": lambda d: iter(["k"]),
        "__getitem__": lambda d, key: 9,
        "__setitem__": lambda d, key, value: None,
        "keys": lambda d: ["k"],
    }
    cls = type("Held", (base,), {})
    held = cls()
    dict.update(held, a=0.5, k=5)
    both = Agreeing(program)
    if not first:
        both(held)
    setattr(cls, name, methods[name])
    both(held)


def test_methods_compared_by_their_own_method() -> None:
    def program(x: torch.Tensor, a: Any, b: Any) -> Any:
        return x * (3 if a.__eq__(a) else 1), a.__eq__(b), a == b, a.__hash__() == hash(a)

    class Held:
        def go(self) -> int:
            return 1

    one, items = Held(), [1]
    methods = [one.go, Held().go, items.append, len]
    for a in methods:
        for b in (*methods, one.go, 3):
            Agreeing(program)(a, b)
            argand.reset()


def by_function(x: torch.Tensor) -> Any:
    return x * importlib.import_module("argand_fake").v, __import__("argand_fake").v


def by_statement(x: torch.Tensor) -> Any:
    import argand_fake  # type: ignore[import-not-found]
    from argand_fake import v

    return x * argand_fake.v, v


@pytest.mark.parametrize("program", [by_function, by_statement])
@pytest.mark.parametrize("kind", ["module", "module of another name", "no module"])
def test_modules_that_sys_modules_has(program: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(v: float) -> Any:
        if kind == "no module":
            return types.SimpleNamespace(v=v, __name__="argand_other")
        module = types.ModuleType("argand_fake" if kind == "module" else "argand_other")
        module.v = v  # type: ignore[attr-defined]
        return module

    both = Agreeing(program)
    for v in (2.0, 3.0):
        monkeypatch.setitem(sys.modules, "argand_fake", made(v))
        both()
    sys.modules["argand_fake"].v = 5.0  # type: ignore[attr-defined]
    both()
    monkeypatch.delitem(sys.modules, "argand_fake")
    assert both()[0] is ModuleNotFoundError

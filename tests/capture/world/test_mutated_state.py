"""State that changes between calls, and classes that answer natively asked questions in Python: what the mutating fuzzer found."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import argand
from capture.agreement import Agreeing, outcome


def agree(fn: Callable[..., Any], *args: Any, dynamic: bool | None = None) -> None:
    Agreeing(fn, dynamic, shape=(2, 2))(*args)


# ---- classes that their metaclass compares or reads


class Meta(type):
    pass


class Judged(metaclass=Meta):
    width = 1

    def __init__(self) -> None:
        self.v = 2.0


def read_judged(x: torch.Tensor, o: Any) -> Any:
    return x * o.v, hasattr(o, "a"), isinstance(o, int | str), getattr(o, "extra", 1), Judged() is o


METACLASS_METHODS: dict[str, Any] = {
    "__eq__": lambda cls, other: True,
    "__ne__": lambda cls, other: True,
    "__hash__": lambda cls: 3,
    "__getattribute__": lambda cls, name: 2,
}


@pytest.mark.parametrize("name", METACLASS_METHODS)
@pytest.mark.filterwarnings("error:argand. capturing")
def test_metaclass_that_compares_or_reads_its_classes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Capture compares, hashes and reads classes for its own ends: with such a metaclass it breaks the graph instead."""
    compiled = argand.compile(read_judged, backend="eager")
    x, o = torch.ones(2), Judged()
    assert outcome(compiled, x, o) == outcome(read_judged, x, o)
    monkeypatch.setattr(Meta, name, METACLASS_METHODS[name], raising=False)
    argand.reset()
    assert outcome(compiled, x, o) == outcome(read_judged, x, o)
    assert outcome(compiled, x, Judged) == outcome(read_judged, x, Judged)
    monkeypatch.undo()
    assert outcome(compiled, x, o) == outcome(read_judged, x, o)


# ---- kinds of list and number with methods of their own, given to torch


class Short(list):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 1


class Fixed(tuple):  # type: ignore[type-arg]
    def __getitem__(self, index: Any) -> Any:
        return 1


class Told(float):
    def __float__(self) -> float:
        return 9.0


class Indexed(int):
    def __index__(self) -> int:
        return 1


TORCH_CALLS: dict[str, Callable[..., Any]] = {
    "tensor": lambda x, o: torch.tensor(o),
    "as_tensor": lambda x, o: torch.as_tensor(o) + x.sum(),
    "index": lambda x, o: x[o],
    "reshape": lambda x, o: x.reshape(o),
    "zeros": lambda x, o: torch.zeros(o),
    "full": lambda x, o: torch.full((2,), o),
    "mul": lambda x, o: x * o,
    "add with alpha": lambda x, o: torch.add(x, 1, alpha=o),
    "nested": lambda x, o: torch.tensor([o, o]),
    "permute": lambda x, o: x.permute(o),
}


@pytest.mark.parametrize(
    "value", [Short([0, 1]), Short([4]), Fixed((0, 1)), Fixed((4,)), Told(2.0), Indexed(0), Indexed(4)], ids=repr
)
@pytest.mark.parametrize("call", TORCH_CALLS)
def test_kinds_of_list_and_number_given_to_torch(call: str, value: Any) -> None:
    agree(TORCH_CALLS[call], value)


def test_a_list_class_that_gains_a_length() -> None:
    class Plain(list):  # type: ignore[type-arg]
        pass

    def f(x: torch.Tensor, o: Any) -> torch.Tensor:
        return x + torch.tensor(o).sum()

    compiled, x, values = argand.compile(f, backend="eager"), torch.ones(2), Plain([3.0, 4.0])
    assert outcome(compiled, x, values) == outcome(f, x, values)
    Plain.__len__ = lambda self: 0  # type: ignore[method-assign]
    assert outcome(compiled, x, values) == outcome(f, x, values)


# ---- positions in lists


def take(x: torch.Tensor, key: Any) -> Any:
    try:
        return x[key] + 1
    except Exception as error:
        return type(error).__name__, str(error)


def put(x: torch.Tensor, key: Any) -> Any:
    log = []
    try:
        x[key] = 1.0
    except Exception as error:
        return type(error).__name__, str(error)
    finally:
        log.append(1)
    return x, log


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")
@pytest.mark.parametrize("fn", [take, put])
@pytest.mark.parametrize(
    "key",
    [[6.0, True], [0, 1], [1, 5], [-3], [[0, 9]], ([0], [7]), (slice(None), [2]), [True, False], [True]],
    ids=repr,
)
def test_list_of_positions_out_of_range_inside_try(fn: Callable[..., Any], key: Any, dynamic: bool | None) -> None:
    agree(fn, key, dynamic=dynamic)


# ---- descriptors and arrays


class Slots:
    __slots__ = ("a",)

    def method(self) -> int:
        return 1

    @property
    def b(self) -> int:
        return 2


@pytest.mark.parametrize("arguments", [(None,), (None, None), (None, Slots)], ids=["instance", "None", "class"])
@pytest.mark.parametrize(
    "descriptor",
    [vars(Slots)["a"], vars(Slots)["method"], vars(Slots)["b"], str.__len__, classmethod(abs)],
    ids=["slot", "function", "property", "method of str", "classmethod"],
)
def test_get_of_a_descriptor_without_object(descriptor: Any, arguments: tuple[Any, ...]) -> None:
    agree(lambda x, d, a: (x, type(d.__get__(*a)).__name__), descriptor, arguments)


@pytest.mark.parametrize("name", ["__module__", "__dict__", "__weakref__", "__doc__", "absent"])
def test_attributes_that_arrays_have_not(name: str) -> None:
    agree(lambda x, a: (x, hasattr(a, name), getattr(a, name, 3)), np.ones(2))


# ---- cells


def counted(fn: Callable[..., Any]) -> Callable[..., Any]:
    def around(*args: Any) -> Any:
        return fn(*args) + 1

    return around


@counted
def tripled(a: Any) -> Any:
    return a * 3


@pytest.mark.filterwarnings("error:argand. capturing")
def test_cells_of_an_inlined_function_are_looked_at() -> None:
    def f(x: torch.Tensor) -> Any:
        y = tripled(x)
        cells = tripled.__closure__
        return y, cells[0].cell_contents is tripled, len(cells), cells[0] is tripled.__closure__[0]

    compiled, x = argand.compile(f, backend="eager"), torch.ones(2)
    assert outcome(compiled, x) == outcome(f, x)
    cell = tripled.__closure__[0]  # type: ignore[index]
    before = cell.cell_contents
    try:
        cell.cell_contents = tripled.__closure__ and abs
        assert outcome(compiled, x) == outcome(f, x)
    finally:
        cell.cell_contents = before
    assert outcome(compiled, x) == outcome(f, x)


# ---- dicts and names that answer for themselves


class Loud(dict):  # type: ignore[type-arg]
    def __getitem__(self, key: Any) -> Any:
        return 1


DICT_READS: dict[str, Callable[..., Any]] = {
    "unpacked, then dict.get": lambda x, a: ([*a], x + dict.get(a, "k")),
    "unpacked, then get": lambda x, a: ([*a], x + a.get("k")),
    "walked, then index": lambda x, a: ([k for k in a], x + a["k"]),
    "values": lambda x, a: x + list(a.values())[0],
    "copied": lambda x, a: (dict(a), {**a}, x + dict.__getitem__(a, "k")),
    "items, then method": lambda x, a: (list(a.items()), x + dict.setdefault(a, "k", 3)),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", DICT_READS)
def test_items_of_a_dict_that_overrides_getitem(name: str, dynamic: bool | None) -> None:
    agree(DICT_READS[name], Loud(k=6.0), dynamic=dynamic)


class Claiming:
    def __init__(self) -> None:
        self.v = 1

    def __getattribute__(self, name: str) -> Any:
        return 2.0


class Pretending:
    @property
    def __class__(self) -> Any:  # type: ignore[override]
        return dict


@pytest.mark.parametrize("value", [Claiming(), Pretending()], ids=["attributes", "class"])
@pytest.mark.filterwarnings("error:argand. capturing")
def test_names_of_an_object_that_hides_them(value: Any) -> None:
    agree(lambda x, o: (x, [name for name in dir(o) if name[0] != "_"]), value)


# ---- attributes of classes


class Color(enum.Enum):
    RED = 1


class Asked(type):
    def __getattr__(cls, name: str) -> Any:
        if name == "absent":
            raise AttributeError(name)
        return 7


class Raising:
    def __get__(self, obj: Any, cls: Any = None) -> Any:
        raise AttributeError("from the descriptor")


class Owner(metaclass=Asked):
    field = Raising()
    absent = Raising()


@pytest.mark.parametrize("name", ["value", "name", "field", "absent", "other", "RED"])
@pytest.mark.parametrize("cls", [Color, Owner])
def test_descriptor_that_raises_attribute_error_on_a_class(cls: type, name: str) -> None:
    """The metaclass's `__getattr__` is asked next, as for an attribute that is not there."""

    def f(x: torch.Tensor, c: Any) -> Any:
        try:
            return x, str(getattr(c, name))
        except AttributeError as error:
            return x, str(error)

    agree(f, cls)


# ---- numbers of numpy's types


class Holder:
    def __init__(self, v: Any) -> None:
        self.v = v

    def go(self) -> int:
        return 1

    def __repr__(self) -> str:
        return "holder"


SCALARS: dict[str, Callable[..., Any]] = {
    "add": lambda x, o: (x, type(o.v + np.float64(0.5)).__name__),
    "added": lambda x, o: (x, type(np.float64(0.5) + o.v).__name__),
    "compare": lambda x, o: (x, type(o.v < np.float32(2)).__name__, type(np.int64(4) > o.v).__name__),
    "power": lambda x, o: (x, type(np.int64(3) * o.v).__name__, type(o.v ** np.float32(2)).__name__),
    "into a tensor": lambda x, o: x * (o.v + np.float32(1)),
}


@pytest.mark.parametrize("name", SCALARS)
def test_number_that_varies_beside_one_of_numpy(name: str) -> None:
    compiled, holder = argand.compile(SCALARS[name], backend="eager"), Holder(3)
    for value in (3, 7, 8, 4.5, 2.5):
        holder.v = value
        assert outcome(compiled, torch.ones(1), holder) == outcome(SCALARS[name], torch.ones(1), holder)


@pytest.mark.parametrize("reduced", ["mean", "sum", "max"])
def test_number_of_an_array_as_an_argument_of_torch(reduced: str) -> None:
    agree(lambda x, a: x.clamp(max=getattr(a, reduced)()), np.array([0.0, 2.0]))
    agree(lambda x, a: torch.add(x, 1, alpha=getattr(a, reduced)()), np.array([0.0, 2.0]))


@pytest.mark.parametrize(
    "name", ["__str__", "__repr__", "__dir__", "__eq__", "__ne__", "__sizeof__", "__name__", "absent"]
)
def test_attributes_of_bound_methods(name: str) -> None:
    def f(x: torch.Tensor, o: Any) -> Any:
        found = getattr(o.go, name)
        return x, found if name == "__name__" else found(3) if name in ("__eq__", "__ne__") else found()

    agree(f, Holder(1))


@pytest.mark.parametrize("value", [3, np.datetime64("2020-01-01"), Holder(1), "ab", ["a", "b"]], ids=repr)
@pytest.mark.parametrize("between", ["-", b"-"])
def test_joining_what_is_no_iterable(value: Any, between: Any) -> None:
    agree(lambda x, v, s: (x, s.join(v)), value, between)


# ---- what a class holds


class Shown:
    def __init__(self, v: Any) -> None:
        self.v = v

    def __get__(self, obj: Any, cls: Any = None) -> Any:
        return self.v


class ShownFirst(Shown):
    def __set__(self, obj: Any, value: Any) -> None:
        pass


class Exhibit:
    got = Shown(5.0)
    both = ShownFirst(2.0)

    def __init__(self) -> None:
        self.__dict__["got"] = 6.0


HELD_READS: dict[str, Callable[..., Any]] = {
    "attribute of a descriptor in the class's dict": lambda x, o: x * Exhibit.__dict__["both"].v,
    "the same by vars": lambda x, o: x * vars(type(o))["both"].v,
    "what the instance holds under the name": lambda x, o: x * o.got,
    "names in the class's dict": lambda x, o: (x, "new" in vars(Exhibit), [k for k in Exhibit.__dict__ if k[0] != "_"]),
    "item with default": lambda x, o: (x, len(Exhibit.__dict__), Exhibit.__dict__.get("new", 3)),
}


@pytest.mark.parametrize("name", HELD_READS)
def test_what_a_class_holds_changes(name: str) -> None:
    fn, o, x = HELD_READS[name], Exhibit(), torch.ones(1)
    compiled = argand.compile(fn, backend="eager")
    got, both = vars(Exhibit)["got"], vars(Exhibit)["both"]

    def same() -> None:
        assert outcome(compiled, x, o) == outcome(fn, x, o)

    same()
    both.v = 3.0
    same()
    got.__class__ = ShownFirst
    same()
    Exhibit.new = 4  # type: ignore[attr-defined]
    same()
    got.__class__ = Shown
    del Exhibit.new  # type: ignore[attr-defined]
    both.v = 2.0
    same()


class Unset:
    def __init__(self) -> None:
        self.v = 1


Unset.v = property(lambda self: 1)  # type: ignore[assignment]


def test_message_of_a_property_that_has_no_name() -> None:
    agree(lambda x, c: (x, c()), Unset)


# ---- names of attributes


class Name(str):
    pass


class Matching(str):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__


@pytest.mark.parametrize("cls", [Name, Matching])
def test_names_of_attributes_of_a_class_of_str(cls: type) -> None:
    def f(x: torch.Tensor, o: Any, name: Any) -> Any:
        return x, getattr(o, name, 5), hasattr(o, name), getattr(x, name, 6)

    compiled, x, o = argand.compile(f, backend="eager"), torch.ones(1), Holder(2)
    for text in ("v", "absent", "longer"):
        assert outcome(compiled, x, o, cls(text)) == outcome(f, x, o, cls(text))


def test_name_of_an_attribute_whose_class_gains_a_comparison() -> None:
    class Plain(str):
        pass

    def f(x: torch.Tensor, name: Any) -> Any:
        return x + getattr(x, name, 5)

    compiled, x = argand.compile(f, backend="eager"), torch.ones(1)
    assert outcome(compiled, x, Plain("ndim")) == outcome(f, x, Plain("ndim"))
    Plain.__eq__ = lambda self, other: True  # type: ignore[method-assign]
    Plain.__hash__ = str.__hash__  # type: ignore[method-assign]
    assert outcome(compiled, x, Plain("ndim")) == outcome(f, x, Plain("ndim"))

"""`argand.quick_dataclasses.dataclass` makes what the standard library's makes."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from argand.quick_dataclasses import _quick

SRC = Path(__file__).parent.parent / "src" / "argand"
OPTIONS = [
    {},
    {"slots": True},
    {"slots": True, "eq": False},
    {"slots": True, "weakref_slot": True},
    {"frozen": True},
    {"frozen": True, "slots": True},
    {"frozen": True, "slots": True, "eq": False, "repr": False},
    {"slots": True, "kw_only": True},
]


def classes(dataclass: Any, options: dict[str, Any]) -> list[type]:
    """Classes of every sort that argand has."""

    @dataclass(**options)
    class Empty:
        """No fields."""

    @dataclass(**options)
    class One:
        """One field."""

        x: int

    @dataclass(**options)
    class Defaults:
        """Fields of every kind."""

        kind: ClassVar[str] = "k"
        x: Any
        items: list[int] = field(default_factory=list)
        hidden: Any = field(default=3, repr=False, compare=False)
        computed: int = field(default=7, init=False)
        made: list[int] = field(default_factory=lambda: [1], init=False)
        late: int = field(default=4, kw_only=True)

    @dataclass(**options)
    class Derived(One):
        """More fields than its base."""

        y: int = 5

    @dataclass(**options)
    class Own:
        """Methods of its own."""

        x: int

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 4

    @dataclass(**options)
    class Checked:
        """Something to do afterwards."""

        x: int

        def __post_init__(self) -> None:
            if self.x == 2:
                raise ValueError("two")

    class Plain(One):
        """No dataclass, of one."""

    return [Empty, One, Defaults, Derived, Own, Checked, Plain]


def outcome(function: Callable[[], Any]) -> tuple[str, Any]:
    """What a call gives or raises."""
    try:
        return "gives", function()
    except Exception as error:
        return type(error).__name__, str(error)


def observed(cls: type, names_set: tuple[str, ...]) -> list[Any]:
    """Everything that can be told of a class and its objects, some of whose attributes are set."""
    seen: list[Any] = [cls.__doc__, getattr(cls, "__match_args__", None), "__weakref__" in dir(cls)]
    calls: list[tuple[Any, dict[str, Any]]] = [
        ((), {}), ((1,), {}), ((2,), {}), ((1, [2]), {}), ((1, [2], 3), {}), ((1, 2, 3, 4), {}),
        ((), {"x": 1}), ((), {"x": 1, "y": 2}), ((), {"x": 1, "late": 2, "hidden": 8}), ((1,), {"nothing": 1}),
    ]  # fmt: skip
    objects: list[Any] = []
    for args, kwargs in calls:
        kind, value = outcome(lambda args=args, kwargs=kwargs: cls(*args, **kwargs))
        seen.append((kind, repr(value) if kind != "gives" or cls.__repr__ is not object.__repr__ else ""))
        if kind == "gives":
            objects.append(value)
    for one in objects:
        names = [each.name for each in dataclasses.fields(one)]
        seen += [names, [getattr(one, name) for name in names]]
        seen.append([outcome(lambda one=one, other=other: one == other) for other in (*objects, 1)])
        seen.append(outcome(lambda one=one: [hash(one) == hash(copy.copy(one)), hash(one) == hash(objects[0])]))
        seen.append([getattr(copy.copy(one), name) for name in names])
        seen.append([getattr(copy.deepcopy(one), name) for name in names])
        seen.append(outcome(lambda one=one: dataclasses.asdict(one)))
        seen.append(outcome(lambda one=one: dataclasses.asdict(dataclasses.replace(one, x=9))))
        for name in names_set:
            seen.append(outcome(lambda one=one, name=name: setattr(one, name, 5)))
            seen.append(outcome(lambda one=one, name=name: delattr(one, name)))
            seen.append(outcome(lambda one=one, name=name: getattr(one, name)))
    return seen


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: " ".join(options) or "none")
def test_it_makes_what_the_standard_library_makes(options: dict[str, Any]) -> None:
    for own, theirs in zip(classes(_quick, options), classes(dataclasses.dataclass, options)):
        if options.get("eq") is False:  # objects are equal to themselves alone, and their hashes differ in each run
            own.__hash__ = theirs.__hash__ = lambda self: 0  # type: ignore[method-assign]
        # of frozen classes see below: some versions of the standard library mistake those with slots for a subclass
        names = () if "frozen" in options else ("x", "other")
        assert observed(own, names) == observed(theirs, names), (own, options)


@_quick(frozen=True, slots=True)
class Kept:
    """Can be found by pickle."""

    x: int
    y: str = "b"


def test_a_frozen_object_with_slots_is_pickled() -> None:
    assert pickle.loads(pickle.dumps(Kept(3))) == Kept(3, "b")


def test_nothing_of_a_frozen_object_changes() -> None:
    for name in ("x", "other"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(Kept(3), name, 4)
        with pytest.raises(dataclasses.FrozenInstanceError):
            delattr(Kept(3), name)


def test_matches_by_position() -> None:
    match Kept(3):
        case Kept(x, y):
            assert (x, y) == (3, "b")


def test_argands_classes_are_made_by_it() -> None:
    slow = [
        path.name
        for path in SRC.rglob("*.py")
        if any(
            line.startswith("from dataclasses import") and "dataclass" in line.split("import")[1].split()
            for line in path.read_text().replace(",", " ").splitlines()
        )
    ]
    assert not slow

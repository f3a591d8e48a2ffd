"""What programs ask of type hints while they run, as validators of fields do."""

import collections.abc
import enum
import sys
import types
import typing
from typing import Annotated, Any, Callable, ClassVar, Dict, Generic, List, Literal, Optional, Tuple, TypeVar, Union

import pytest
import torch

import argand

T = TypeVar("T")
Pair: Any = typing.TypeAliasType("Pair", tuple[T, T], type_params=(T,)) if sys.version_info >= (3, 12) else None


class Box(Generic[T]):
    pass


class Least:
    def __init__(self, value):
        self.value = value


class Level(enum.Enum):
    LOW = 1


HINTS = [
    Any, int, None, T, Box, Box[T], Box[int], Generic, Generic[T], Union, Optional, Literal, List, "int",
    Optional[int], Union[int, str, None], Optional[Box], int | None, Literal["a", "b"], Literal[Level.LOW], List[int],
    Dict[str, Optional[Box]], Tuple[int, ...], Callable[[int], str], Callable, ClassVar[int], Annotated[int, "bits"],
    list[int], dict[str, Box], collections.abc.Callable[[int], str], collections.abc.Sequence[Box],
    typing.Required[int], typing.Concatenate[int, ...], typing.NewType("Number", int), typing.ForwardRef("Box"),
    *([Pair, Pair[int]] if Pair else ()),
]  # fmt: skip


@pytest.mark.parametrize("hint", HINTS, ids=str)
def test_parts_of_a_hint(hint):
    def function(x, hint):
        x = x + 1
        return (
            x * 2,
            typing.get_origin(hint),
            typing.get_args(hint),
            [typing.get_origin(t) for t in typing.get_args(hint)],
        )

    holder = types.SimpleNamespace(hint=hint)
    for given in (lambda x: function(x, hint), lambda x: function(x, holder.hint)):
        _, *ours = argand.compile(given, backend="eager", fullgraph=True)(torch.ones(2))
        _, *theirs = given(torch.ones(2))
        assert ours == theirs
        assert [type(each) for each in ours[1]] == [type(each) for each in theirs[1]]


@pytest.mark.skipif(Pair is None, reason="aliases are written so since Python 3.12")
def test_an_alias_with_parameters():
    def function(x):
        return typing.cast(Pair[int], x) + 1, Pair[str], Pair.__name__

    ours, *rest = argand.compile(function, backend="eager", fullgraph=True)(torch.ones(2))
    assert ours.tolist() == [2, 2] and tuple(rest) == (Pair[str], "Pair")


def test_another_hint_is_another_answer():
    @argand.compile(backend="eager", fullgraph=True)
    def function(x, holder):
        return x + len(typing.get_args(holder.hint)), typing.get_origin(holder.hint)

    holder = types.SimpleNamespace()
    for hint in (Optional[int], Literal["a"], Union[int, str, None], list[int], List[int], int, Optional[int]):
        holder.hint = hint
        x, origin = function(torch.zeros(1), holder)
        assert x.item() == len(typing.get_args(hint)) and origin is typing.get_origin(hint)


def test_an_object_in_a_hint_stays_the_object_that_it_is():
    least = Least(3)

    @argand.compile(backend="eager")
    def function(x, hint):
        return x + 1, typing.get_args(hint)

    for hint in (Annotated[int, least], Literal[least], list[least]):
        assert function(torch.ones(1), hint)[1][-1] is least


class Table:
    __class_getitem__ = classmethod(types.GenericAlias)
    rows = {"a": 1}
    size = 2


def test_attributes_of_a_hint():
    """Regression: what the class of a generic alias holds was read unguarded, and its arguments were copies."""

    def function(x, hint):
        hint.rows["b"] = hint.size
        return x + hint.size, hint.rows, hint.__args__, hint.__name__, getattr(hint, "none", None)

    compiled = argand.compile(function, backend="eager", fullgraph=True)
    for Table.size in (2, 3, 3):
        ours = compiled(torch.ones(1), Table[int])
        assert Table.rows == {"a": 1, "b": Table.size} and ours[1] is Table.rows
        assert ours == function(torch.ones(1), Table[int])
    least = Least(3)
    compiled = argand.compile(lambda x, hint: (x + 1, hint.__args__[0]), backend="eager")
    assert compiled(torch.ones(1), list[least])[1] is least


class Sneaky(types.GenericAlias):
    asked = 0

    @property
    def __origin__(self):
        Sneaky.asked += 1
        return set


def test_a_hint_of_the_program_s_own_class_answers_itself():
    def function(x, hint):
        return x + 1, typing.get_origin(hint)

    compiled = argand.compile(function, backend="eager")
    for _ in range(2):
        assert compiled(torch.ones(1), Sneaky(list, (int,)))[1] is function(torch.ones(1), Sneaky(list, (int,)))[1]
    assert Sneaky.asked == 4


def check(value, hint):
    """A validator in the style of data classes."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Union or origin is types.UnionType:
        errors = []
        for part in parts:
            try:
                check(value, part)
                return
            except TypeError as error:
                errors.append(str(error))
        raise TypeError("; ".join(errors))
    if origin is Literal:
        if value not in parts:
            raise TypeError(f"{value} is none of {parts}")
    elif origin is list:
        for each in value:
            check(each, parts[0])
    elif hint is not Any and not isinstance(value, hint):
        raise TypeError(f"{value} is no {hint.__name__}")


class Checked:
    HINTS = {
        "kind": Optional[Literal["regression", "classes"]],
        "sizes": Union[int, List[int], None],
        "scale": float | int,
    }

    def __setattr__(self, name, value):
        check(value, Checked.HINTS[name])
        super().__setattr__(name, value)


def test_a_validator_of_attributes_is_captured():
    def function(x, config):
        config.kind = "classes" if x.shape[0] > 1 else None
        config.sizes = [x.shape[0], 2]
        config.scale = 2
        try:
            config.kind = "other"
        except TypeError as error:
            return x * config.scale, str(error)

    ours, theirs = Checked(), Checked()
    compiled = argand.compile(function, backend="eager", fullgraph=True)
    for _ in range(2):
        one, two = compiled(torch.ones(3), ours), function(torch.ones(3), theirs)
        assert torch.equal(one[0], two[0]) and one[1] == two[1] and vars(ours) == vars(theirs)

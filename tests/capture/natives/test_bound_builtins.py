"""Methods of C classes bound to an object that changes in place, wherever the program holds them."""

import collections
import types

import pytest
import torch

import argand


class Slotted:
    __slots__ = ("get",)


class InClass:
    get = None


class Plain:
    pass


def holders():
    """(name, how a place is filled, how it is read)"""
    slotted, plain, listed, space = Slotted(), Plain(), [None], types.SimpleNamespace()
    yield "class", lambda m: setattr(InClass, "get", m), lambda: InClass.get
    yield "instance of the class", lambda m: setattr(InClass, "get", m), lambda: InClass().get
    yield "slot", lambda m: setattr(slotted, "get", m), lambda: slotted.get
    yield "instance", lambda m: setattr(plain, "get", m), lambda: plain.get
    yield "list", lambda m: listed.__setitem__(0, m), lambda: listed[0]
    yield "namespace", lambda m: setattr(space, "get", m), lambda: space.get


USES = {
    "call": lambda read: read()("k"),
    "owner": lambda read: read().__self__["k"],
    "reduced": lambda read: read().__reduce__()[1][0]["k"],
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(("fill", "read"), [pytest.param(*parts, id=name) for name, *parts in holders()])
def test_what_it_is_bound_to_is_read_in_each_call(fill, read, use):
    held = {"k": 7}
    fill(held.get)
    used = USES[use]

    def program(x):
        return x * 2, used(read)

    compiled = argand.compile(program, backend="eager")
    for value in (7, 8, 8, 9):
        held["k"] = value
        assert compiled(torch.ones(1))[1] == value
    fill({"k": -1}.get)
    assert compiled(torch.ones(1))[1] == -1


def test_what_it_is_bound_to_is_the_programs_own():
    held = [1]
    InClass.get = held.append

    def program(x):
        return x * 2, InClass.get.__self__, InClass.get.__reduce__()[1][0], len.__reduce__()

    _, one, two, name = argand.compile(program, backend="eager")(torch.ones(1))
    assert one is held and two is held and name == "len"


class OwnItem(dict):
    def __getitem__(self, key):
        return 2.5


class OwnKeys(dict):
    def keys(self):
        return ["k"]


class OwnIter(dict):
    def __iter__(self):
        return iter(["k"])


@pytest.mark.parametrize("cls", [dict, collections.OrderedDict, OwnItem, OwnKeys, OwnIter])
def test_an_ordered_dict_asks_subclasses_for_keys_and_values(cls):
    def program(x, o):
        filled = collections.OrderedDict(a=0)
        filled.update(o)
        return x * 1, collections.OrderedDict(o), filled, dict(o)

    given = cls(k=-1, j=3)
    assert argand.compile(program, backend="eager")(torch.ones(1), given)[1:] == program(torch.ones(1), given)[1:]


@pytest.mark.parametrize("key", [range(2, 6), range(5, 6), (slice(None), range(3, 9))])
def test_ranges_of_positions_raise_inside_the_try(key):
    def program(x, key):
        try:
            return x[key]
        except IndexError as error:
            return str(error)

    x = torch.arange(12.0).reshape(3, 4)
    assert argand.compile(program, backend="eager")(x, key) == program(x, key)

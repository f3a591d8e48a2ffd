"""Containers that hold themselves, from outside and made in the function: read as eager reads them, and in no more time."""

import collections
import time

import pytest
import torch

import argand


class Shown:
    def __repr__(self):
        return "shown"


def a_list():
    it = [Shown()]
    it += [it, it, it]
    return it


def a_dict():
    it = {"a": Shown()}
    it.update(b=it, c=it, d=it)
    return it


def a_tuple():
    held = [Shown()]
    it = (held, held, held)
    held += [it, it]
    return it


def two_lists():
    one, other = [Shown()], [Shown()]
    one += [other, other, other]
    other += [one, one, one]
    return one


def a_deque():
    it = collections.deque([Shown()])
    it.extend((it, it, it))
    return it


def a_subclass():
    it = type("Held", (list,), {})([Shown()])
    it += [it, it, it]
    return it


def shared_often():
    it = [Shown()]
    for _ in range(6):
        it = (it, it)
    return it


MAKERS = (a_list, a_dict, a_tuple, two_lists, a_deque, a_subclass, shared_often)
READS = {
    "text": lambda x, it: (f"{it}", repr(it), str((it, it)), "%s %r" % (it, [it]), f"{it!r:>9}"),
    "identity": lambda x, it: (len(it), it == it, it in [it], [it].index(it), (it,) == (it,), {1: it}[1] is it),
    "tensor": lambda x, it: torch.tensor(it),
    "tensor of numbers": lambda x, it: torch.tensor([it, 1, 2.0]),
    "new tensor": lambda x, it: x.new_tensor(it),
    "stack": lambda x, it: torch.stack(it),
    "size": lambda x, it: x.reshape(it),
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("make", MAKERS)
def test_reads(make, read):
    def of_outer(x):
        try:
            return x + 1, READS[read](x, held)
        except Exception as error:
            return type(error).__name__, str(error)

    def of_own(x):
        try:
            return x + 1, READS[read](x, make())
        except Exception as error:
            return type(error).__name__, str(error)

    held, x = make(), torch.ones(2)
    for program in (of_outer, of_own):
        want = program(x)
        start = time.thread_time()
        got = argand.compile(program, backend="eager")(x)
        assert time.thread_time() - start < 20  # seconds; a walk over every path has no end
        assert str(got) == str(want)


def test_texts_follow_what_is_put_into_it():
    def program(x):
        held.append(held)
        return x + 1, f"{held}"

    compiled = argand.compile(program, backend="eager")
    for _ in range(4):
        held = [Shown()]
        want = program(torch.ones(1))[1]
        held = [Shown()]
        assert compiled(torch.ones(1))[1] == want

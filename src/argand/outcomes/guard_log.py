"""A guard tree as the list of the calls that made it, and the tree that this list makes again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final, TypeVar

import torch

from argand._core import _C
from argand.outcomes.references import Describer, plain
from argand.outcomes.resolver import Child, Mismatch, Resolver

Call = tuple[str, tuple[Any, ...], tuple[int, ...], str | None]
"""A method of the tree, its arguments, which of these are rows of the table, and the label of a check."""
_INTERESTING: Final = frozenset(("id", "type", "tensor", "type_version"))
_VERSIONED: Final = "type_version"
_T = TypeVar("_T")


class Log:
    """Stands for a guard tree while it is built, and notes what is asked of it."""

    def __init__(self) -> None:
        self.tree = _C.GuardTree()
        self.calls: list[tuple[str, tuple[Any, ...], str | None]] = []
        self.numbers: list[int] = []

    def _noted(self, method: str, args: tuple[Any, ...], label: str | None, answer: _T) -> _T:
        self.calls.append((method, args, label))
        self.numbers.append(answer if isinstance(answer, int) else -1)
        return answer

    def child(self, *args: Any) -> int:
        return self._noted("child", args, None, self.tree.child(*args))

    def check(self, *args: Any, label: str = "") -> None:
        self._noted("check", args, label, self.tree.check(*args, label=label))

    def repeat(self, *args: Any) -> list[int]:
        return self._noted("repeat", args, None, self.tree.repeat(*args))

    def check_expr(self, *args: Any, label: str = "") -> int:
        return self._noted("check_expr", args, label, self.tree.check_expr(*args, label=label))

    def collect(self, *args: Any) -> None:
        self.tree.collect(*args)
        self._noted("collect", args, None, None)

    def slot(self, *args: Any, **named: Any) -> int:
        return self._noted("slot", (*args, tuple(named.items())), None, self.tree.slot(*args, **named))

    def places(self) -> dict[int, tuple[int, str]]:
        """id of an object that a check asks for -> the node where it is found, and whether it is the class there."""
        places: dict[int, tuple[int, str]] = {}
        for method, args, _ in self.calls:
            if method == "check" and args[1] in _INTERESTING and args[0]:
                if args[1] == "id":
                    places.setdefault(id(args[2]), (args[0], "value"))
                elif args[1] != _VERSIONED:
                    places.setdefault(id(args[2]), (args[0], "class"))
        return places

    def asked(self) -> dict[type, tuple[str, ...]]:
        """The classes that are looked into, and the names that are looked up there."""
        names_of: dict[type, tuple[str, ...]] = {}
        for method, args, _ in self.calls:
            if method == "check" and args[1] == _VERSIONED and len(args) > 3 and args[3]:
                names_of[args[2]] = tuple(sorted(args[3]))
        return names_of

    def described(self, describer: Describer) -> list[Call]:
        """The calls in words that another process understands.

        Raises:
            Unstorable: one names something that only this process knows.
        """
        return [_described(describer, *call) for call in self.calls]


def _described(describer: Describer, method: str, args: tuple[Any, ...], label: str | None) -> Call:
    if method == "collect":
        return method, (tuple(args[0]),), (), None
    if method == "check" and args[1] == _VERSIONED:
        names = args[3] if len(args) > 3 else None
        describer.check_class(args[2], names)
        wanted = None if names is None else tuple(sorted(names))
        return method, (args[0], _VERSIONED, describer.row(args[2]), wanted), (2,), label
    if plain(args):
        return method, args, (), label
    described: list[Any] = []
    rows = []
    for place, arg in enumerate(args):
        value, is_row = describer.argument(arg)
        described.append(value)
        if is_row:
            rows.append(place)
    return method, tuple(described), tuple(rows), label


def nodes(calls: Sequence[Call], numbers: Sequence[int]) -> dict[int, Child]:
    """The nodes that calls make."""
    return {
        number: (args[0], args[1], args[2:], tuple([place - 2 for place in rows]))
        for (method, args, rows, _), number in zip(calls, numbers)
        if method == "child"
    }


def build(
    calls: Sequence[Call], numbers: Sequence[int], resolver: Resolver, given: Collection[int] | None = None
) -> _C.GuardTree:
    """The tree again.

    Arguments:
        given: makes only what can be told of the arguments at these places, and of what is no argument.

    Raises:
        Mismatch: something that it names is not here.
    """
    if given is not None:
        return _partial(calls, numbers, resolver, given)
    tree = _C.GuardTree()
    child, check = tree.child, tree.check
    lazy: dict[int, object] = {}  # nodes of namespaces of torch's operators, and of what these hold: filled when asked
    for (method, args, rows, label), number in zip(calls, numbers):
        arguments: Sequence[Any] = resolver.arguments(args, rows) if rows else args
        if method == "check":
            if args[1] == _VERSIONED and args[3] is not None:
                arguments = (*arguments[:3], frozenset(args[3]))
            elif args[1] == "id" and type(arguments[2]) is torch._ops._OpNamespace:
                lazy[args[0]] = arguments[2]
            check(*arguments, label=label or "")
        elif method == "child":
            if child(*arguments) != number:
                raise Mismatch("the nodes of the guards have other numbers")
            if args[0] in lazy:
                lazy[number] = lazy[args[0]] if args[1] == "instance_dict" else getattr(lazy[args[0]], args[2], None)
        elif method == "collect":
            tree.collect(list(args[0]))
        elif method == "repeat":
            tree.repeat(*args)
        elif method == "check_expr":
            tree.check_expr(*arguments, label=label or "")
        else:
            tree.slot(*arguments[:-1], **dict(arguments[-1]))
    return tree


def _partial(calls: Sequence[Call], numbers: Sequence[int], resolver: Resolver, given: Collection[int]) -> _C.GuardTree:
    """A tree of the guards below some arguments, and below what is no argument."""
    tree = _C.GuardTree()
    here = {0: 0}  # numbers of nodes in the whole tree -> in this one
    children: dict[int, Call] = {}
    checks: dict[int, Call] = {}  # by their numbers in the whole tree

    def child(call: Call, parent: int) -> int:
        _, args, rows, _ = call
        return tree.child(parent, *resolver.arguments(args, rows)[1:])

    def check(call: Call, node: int) -> None:
        _, args, rows, label = call
        resolved = resolver.arguments(args, rows)
        names = (frozenset(args[3]),) if args[1] == _VERSIONED and args[3] is not None else resolved[3:]
        tree.check(node, *resolved[1:3], *names, label=label or "")

    def repeat(first: int, last: int, node: int, other: int, wanted: Sequence[int], old: str, new: str) -> None:
        like = {node: here[other]}

        def mapped(number: int) -> int:
            if number not in like:
                like[number] = child(children[number], mapped(children[number][1][0]))
            return like[number]

        for method, args, rows, label in map(checks.__getitem__, range(first, last)):
            if args[1] in _OF_ONE:
                check((method, args, rows, new + (label or "").removeprefix(old)), mapped(args[0]))

    for call, number in zip(calls, numbers):
        method, args = call[:2]
        if method == "child" and args[0] in here and not (args[1] == "local" and args[2] not in given):
            here[number] = child(call, here[args[0]])
            children[number] = call
        elif method == "check":
            checks.setdefault(number, call)
            if args[0] in here and args[1] in _OF_ONE:
                check(call, here[args[0]])
        elif method == "repeat" and args[3] in here:
            repeat(*args)
    return tree


_OF_ONE: Final = frozenset(
    ("type", "id", "equals", "is_none", "not_none", "len", "dict_keys", "has_key", "not_has_key", "has_attr",
     "not_has_attr", "type_version", "tensor")
)  # fmt: skip
"""Kinds of checks that look at one value, and at nothing of the process that a call may set otherwise."""

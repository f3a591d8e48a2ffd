"""How callables that a compiler made are made again: a text and the objects that it names, a key of the disk cache.

A function that `with_recipe` was given carries its recipe; what a later process needs of it is described from that.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, TypeVar

from argand.quick_dataclasses import dataclass

F = TypeVar("F", bound=Callable[..., Any])
_NAME = "_argand_recipe"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to make a callable.

    Arguments:
        kind: which function makes it (`resolving.MAKERS`).
        parts: gives that function's arguments: plain values, objects, and dicts of names.
    """

    kind: str
    parts: Callable[[], tuple[Any, ...]]


class Described:
    """A class whose objects are called, and may carry recipes as functions do."""


def with_recipe(fn: F, kind: str, parts: Callable[[], tuple[Any, ...]]) -> F:
    """`fn`, which takes attributes, with a recipe: that of a class method is its class's."""
    holder: Any = getattr(fn, "__self__", fn)
    setattr(holder, _NAME, Recipe(kind, parts))
    return fn


def recipe_of(fn: object) -> Recipe | None:
    """The recipe of a callable; None where it has none."""
    holder = fn.__self__ if type(fn) is MethodType and isinstance(fn.__self__, type) else fn
    known = type(fn) is FunctionType or holder is not fn or issubclass(type(fn), Described)
    recipe = vars(holder).get(_NAME) if known else None
    return recipe if type(recipe) is Recipe else None


def same_recipe(fn: F, as_of: object) -> F:
    """`fn`, which does what another callable does, with that one's recipe, if it has any."""
    recipe = recipe_of(as_of)
    if recipe is not None:
        fn.__dict__[_NAME] = recipe
    return fn


def compile_wrapper(source: str, names: dict[str, Any]) -> Callable[..., Any]:
    """The function `call` that `source` defines, in a namespace of these names."""
    namespace = dict(names)
    exec(compile(source, "<argand runtime wrapper>", "exec"), namespace)
    wrapper: Callable[..., Any] = namespace["call"]
    return with_recipe(wrapper, "wrapper", lambda: (source, names))

"""What nested tuples, lists and dicts hold: results of operations, arguments of nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch


def leaves(tree: Any) -> Iterator[Any]:
    """What is none of these containers, in order; keys of dicts are not looked at."""
    gathered: list[Any] = []
    _gather((tree,), gathered)
    return iter(gathered)


def _gather(items: Iterable[Any], into: list[Any]) -> None:
    for item in items:
        if isinstance(item, (tuple, list)):
            _gather(item, into)
        elif isinstance(item, dict):
            _gather(item.values(), into)
        else:
            into.append(item)


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """The leaves that are tensors."""
    return [leaf for leaf in leaves(tree) if isinstance(leaf, torch.Tensor)]


def rebuilt(tree: Any, of: Callable[[Any], Any]) -> Any:
    """A tuple, list, dict or slice of what `of` makes of each part; anything else, other tuples too, as it is."""
    cls = type(tree)
    if cls is tuple or cls is list:
        return cls([of(item) for item in tree])
    if cls is dict:
        return {key: of(item) for key, item in tree.items()}
    return slice(of(tree.start), of(tree.stop), of(tree.step)) if cls is slice else tree


def mapped(tree: Any, of_leaf: Callable[[Any], Any]) -> Any:
    """The same containers of what `of_leaf` makes of their leaves; instances of other classes of tuples are leaves."""
    if type(tree) in (tuple, list):
        return type(tree)([mapped(item, of_leaf) for item in tree])
    if type(tree) is dict:
        return {key: mapped(item, of_leaf) for key, item in tree.items()}
    return of_leaf(tree)

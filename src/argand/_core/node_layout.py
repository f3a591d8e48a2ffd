"""Whether hooks stand on a node of autograd's tape.

Torch tells of hooks only to those who put them there: a hook of a tensor, `retain_grad` and hooks of C++ (DDP's) leave
no trace that Python could read. A node object holds the address of the node, and the node its lists of hooks; where
these lie is learnt once per process from samples that differ in one hook, and believed only when exactly one place
agrees with all of them. Nothing is written, no header of torch's is used, and where anything is in doubt nobody is told
anything.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from typing import Any

import torch

from argand.quick_dataclasses import dataclass

_WORDS = 40  # of a node's memory that are looked at: what all nodes have lies in front
_WORDS_OF_TENSORS = 16
_WORDS_OF_LEAVES = 16  # of what autograd knows of a leaf
_LIST = bytes(24)  # begin, end and end of the room of a list that never held anything
_NONE = bytes(8)
_string_at = ctypes.string_at
_word_at = ctypes.c_uint64.from_address


class _Sample(torch.autograd.Function):
    """A node that Python defines."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads


@dataclass(frozen=True, slots=True)
class NodeLayout:
    """Where hooks are found.

    Arguments:
        defined: where an object of a node that Python defines holds the node's address.
        lists: offsets in a node of the lists of hooks: called before it, of tensors that it made, called after it.
        kinds: what objects of Python's hooks in these lists begin with; behind it is the dictionary of the hooks.
        retained: offset of the number of hooks by which tensors retain gradients.
        leaf: where a tensor holds the address of what autograd knows of it; where in that are the list of its hooks
            and the node that accumulates its gradient; and what objects of Python's hooks in the list begin with.
    """

    defined: int
    lists: tuple[int, int, int]
    kinds: tuple[int, int, int]
    retained: int
    leaf: tuple[int, int, int, int]

    def hooked_natively(self, leaf: torch.Tensor) -> bool:
        """There is a hook on a leaf that is not Python's."""
        of_tensor, at, _, kind = self.leaf
        known = _word_at(leaf._cdata + of_tensor).value
        if not known:
            return False
        places = range(_word_at(known + at).value, _word_at(known + at + 8).value, 8)
        return any(_word_at(_word_at(place).value).value != kind for place in places)

    def accumulates_quietly(self, leaf: torch.Tensor) -> bool:
        """There is no hook on a leaf that Python does not show, nor one on the node that accumulates its gradient."""
        known = _word_at(leaf._cdata + self.leaf[0]).value
        if not known:
            return True
        node = _word_at(known + self.leaf[2]).value
        return not (node and not self._unhooked(node)) and not self.hooked_natively(leaf)

    def unhooked(self, node: Any) -> bool:
        """Nobody put a hook on this node or on a tensor that it made. A leaf's own hooks are the tensor's to tell.

        A list that held a hook before counts as one that does.
        """
        return self._unhooked(self._of(node))

    def _unhooked(self, address: int) -> bool:
        first, second, third = self.lists
        block = _string_at(address, max(first, second, third, self.retained) + 24)  # not past its end
        return (
            block[first : first + 24] == _LIST
            and block[second : second + 24] == _LIST
            and block[third : third + 24] == _LIST
            and block[self.retained : self.retained + 8] == _NONE
        )

    def hooks_of(self, node: Any) -> list[dict[int, Any]] | None:
        """The dictionaries of the hooks on a node and on tensors that it made; None where some hook is not Python's."""
        hooks: list[dict[int, Any]] = []
        for _, hook, kind in self._hooks(node):
            if _word_at(hook).value != kind:
                return None
            hooks.append(_dict_of(hook))
        return hooks

    def natively_followed(self, node: Any) -> bool:
        """The one hook on this node is not Python's, and is called after it."""
        native = []
        for at, hook, kind in self._hooks(node):
            if _word_at(hook).value != kind:
                native.append(at)
            elif _dict_of(hook):
                return False
        return native == [self.lists[2]] and not self.retains(node)

    def runs_hooks(self, node: Any) -> bool:
        """There are hooks of Python's that are called before or after the node itself, not for tensors that it made."""
        return any(at != self.lists[1] and _dict_of(hook) for at, hook, _ in self._hooks(node))

    def sees_gradients(self, node: Any) -> bool:
        """There are hooks of tensors that the node made, which see what comes to it, whether it runs or not."""
        at = self._of(node) + self.lists[1]
        return bool(_word_at(at).value != _word_at(at + 8).value)

    def retains(self, node: Any) -> bool:
        """A tensor that the node made retains its gradient."""
        return bool(_word_at(self._of(node) + self.retained).value)

    def _of(self, node: Any) -> int:
        return _address(node, self.defined if isinstance(node, torch._C._FunctionBase) else _HEAD)

    def _hooks(self, node: Any) -> Iterator[tuple[int, int, int]]:
        """Of each hook: the list that it is in, its address, and the kind of Python's hooks there."""
        address = self._of(node)
        for at, kind in zip(self.lists, self.kinds):
            for place in range(_word_at(address + at).value, _word_at(address + at + 8).value, 8):
                yield at, _word_at(place).value, kind


def _dict_of(hook: int) -> Any:
    return ctypes.cast(_word_at(hook + 8).value, ctypes.py_object).value


_HEAD = object.__basicsize__  # an object of a C++ node has nothing else in front of the address


def _address(holder: object, at: int) -> int:
    return _word_at(id(holder) + at).value


def _words(address: int) -> list[int]:
    return list((ctypes.c_uint64 * _WORDS).from_address(address))


@functools.cache
def node_layout() -> NodeLayout | None:
    """The layout of this process's torch; None where it cannot be told."""
    with torch.enable_grad(), torch._C.DisableTorchFunction():
        return _learnt()


# ---------------------------------------------------------------------- what nodes of dropout do not tell

_WORDS_OF_DROPOUT = 80
_RATES = (0.3, 0.45)


@functools.cache
def dropout_flag() -> int | None:
    """Where a node of `native_dropout` holds, behind the rate, whether it trains: two bytes, the second of which says
    whether the first counts. None where it cannot be told."""
    with torch.enable_grad(), torch._C.DisableTorchFunction(), torch.random.fork_rng(devices=[]):
        tensor = torch.ones(2, device="cpu", requires_grad=True)
        drop = torch.ops.aten.native_dropout
        drawn = [(rate, train, drop(tensor, rate, train)[0]) for rate in _RATES for train in (True, False, None)]
    samples = [(rate, train, result.grad_fn) for rate, train, result in drawn]
    for at in range(0, 8 * _WORDS_OF_DROPOUT, 8):  # what is behind the first such place may not be the node's
        if all(ctypes.c_double.from_address(_address(node, _HEAD) + at).value == rate for rate, _, node in samples):
            return at + 8 if all(trains(node, at + 8) is train for _, train, node in samples) else None
    return None


def trains(node: Any, flag: int) -> bool | None:
    """What a node of `native_dropout` was told.

    Arguments:
        flag: `dropout_flag()`.
    """
    value, counts = _string_at(_address(node, _HEAD) + flag, 2)
    return bool(value) if counts else None


def _sample_result() -> torch.Tensor:
    return torch.ones(2, device="cpu", requires_grad=True).exp()


def _learnt() -> NodeLayout | None:
    plain = [_sample_result() for _ in range(4)]
    nodes = [tensor.grad_fn for tensor in plain]  # held: torch 2.11 makes another object each time one asks
    clean = [_words(_address(node, _HEAD)) for node in nodes]
    if not all(words.count(id(node)) == 1 for words, node in zip(clean, nodes)):
        return None  # no node knows its object: these are no addresses of nodes
    hooked: list[list[list[int]]] = []
    dictionaries: list[list[int]] = []
    kept: list[Any] = []
    for kind in range(4):
        tensors = [_sample_result(), _sample_result()]
        dictionaries.append([])
        for tensor in tensors:
            node: Any = tensor.grad_fn
            kept += [tensor, node]
            handle = _put(kind, tensor)
            dictionaries[-1].append(id(handle.hooks_dict_ref()) if handle is not None else 0)
        hooked.append([_words(_address(tensor.grad_fn, _HEAD)) for tensor in tensors])
    lists = [_only(_is_list(at, clean, samples) for at in range(_WORDS - 2)) for samples in hooked[:3]]
    retained = _only(all(w[at] == 0 for w in clean) and all(w[at] == 1 for w in hooked[3]) for at in range(_WORDS))
    defined = _defined()
    if defined is None or retained is None or None in lists or len(set(lists)) < 3:
        return None
    first, second, third = (8 * at for at in lists if at is not None)
    kinds = [_kind(samples, at, held) for samples, at, held in zip(hooked, (first, second, third), dictionaries)]
    if None in kinds:
        return None
    one, two, three = (kind for kind in kinds if kind is not None)
    leaf = _of_leaves()
    if leaf is None:
        return None
    layout = NodeLayout(defined, (first, second, third), (one, two, three), 8 * retained, leaf)
    told = [layout.unhooked(tensor.grad_fn) for tensor in [*plain, *kept[::2]]]
    return layout if told == [True] * len(plain) + [False] * 8 and _told_of_defined(layout) else None


def _of_leaves() -> tuple[int, int, int, int] | None:
    """`NodeLayout.leaf`."""
    without = [_tensor_words(torch.ones(2, device="cpu")) for _ in range(3)]
    leaves = [torch.ones(2, device="cpu", requires_grad=True) for _ in range(3)]
    hooked = [torch.ones(2, device="cpu", requires_grad=True) for _ in range(2)]
    dictionaries = [id(one.register_hook(_hook).hooks_dict_ref()) for one in hooked]
    nodes = [torch.autograd.graph.get_gradient_edge(one).node for one in leaves]  # held: nobody else does
    words = [_tensor_words(one) for one in (*leaves, *hooked)]
    known = _only(
        all(one[at] == 0 for one in without) and all(one[at] > 4096 for one in words) for at in range(_WORDS_OF_TENSORS)
    )
    if known is None:
        return None
    metas = [list((ctypes.c_uint64 * _WORDS_OF_LEAVES).from_address(one[known])) for one in words]
    clean, samples = metas[: len(leaves)], metas[len(leaves) :]
    at = _only(_is_list(place, clean, samples) for place in range(_WORDS_OF_LEAVES - 2))
    kind = None if at is None else _kind(samples, 8 * at, dictionaries)
    addresses = [_address(node, _HEAD) for node in nodes]
    node = _only([one[place] for one in clean] == addresses for place in range(_WORDS_OF_LEAVES))
    if at is None or kind is None or node is None or any(one[node] for one in samples):
        return None
    return 8 * known, 8 * at, 8 * node, kind


def _tensor_words(tensor: torch.Tensor) -> list[int]:
    return list((ctypes.c_uint64 * _WORDS_OF_TENSORS).from_address(tensor._cdata))


def _put(kind: int, tensor: Any) -> Any:
    """Put a hook of one kind on a sample; returns its handle, where there is one."""
    if kind == 0:
        return tensor.grad_fn.register_prehook(_hook)
    if kind == 1:
        return tensor.register_hook(_hook)
    if kind == 2:
        return tensor.grad_fn.register_hook(_hook)
    tensor.retain_grad()
    return None


def _kind(samples: list[list[int]], at: int, dictionaries: list[int]) -> int | None:
    """What the objects in a list of hooks begin with, where the dictionary of the hooks comes next."""
    hooks = [_word_at(words[at // 8]).value for words in samples]
    kinds = {_word_at(hook).value for hook in hooks}
    told = [_word_at(hook + 8).value for hook in hooks] == dictionaries
    return kinds.pop() if told and len(kinds) == 1 else None


def _hook(*given: Any) -> None:
    """A hook of a sample."""


def _is_list(at: int, clean: list[list[int]], hooked: list[list[int]]) -> bool:
    """Whether a list begins here that is empty in clean samples, and holds one pointer in the others."""
    empty = all(words[at : at + 3] == [0, 0, 0] for words in clean)
    return empty and all(words[at] and words[at] + 8 == words[at + 1] <= words[at + 2] for words in hooked)


def _only(matches: Any) -> int | None:
    """The one place at which something is found."""
    places = [at for at, one in enumerate(matches) if one]
    return places[0] if len(places) == 1 else None


def _defined() -> int | None:
    """Where the object of a node that Python defines holds the address, which the node after it knows as well."""
    edges = _edges()
    if edges is None:
        return None
    common: set[int] | None = None
    for _ in range(3):
        tensor: torch.Tensor = _Sample.apply(_sample_result())
        after = tensor.exp()
        first = _words(_address(after.grad_fn, _HEAD))[edges]
        address = int(ctypes.c_uint64.from_address(first).value)
        places = range(_HEAD, torch._C._FunctionBase.__basicsize__ - 7, 8)
        here = {at for at in places if _address(tensor.grad_fn, at) == address}
        common = here if common is None else common & here
    return common.pop() if common is not None and len(common) == 1 else None


def _edges() -> int | None:
    """Which word of a node begins the list of the nodes after it."""
    first = _sample_result()
    second = first.exp()
    address, words = _address(first.grad_fn, _HEAD), _words(_address(second.grad_fn, _HEAD))
    return _only(
        words[at] > 4096
        and words[at + 1] - words[at] in (16, 24)  # of torch 2.13 and of 2.11
        and words[at + 1] <= words[at + 2]
        and ctypes.c_uint64.from_address(words[at]).value == address
        for at in range(_WORDS - 2)
    )


def _told_of_defined(layout: NodeLayout) -> bool:
    """Whether the layout is right about nodes that Python defines."""
    told = []
    for kind in range(4):
        tensor: Any = _Sample.apply(_sample_result())
        told.append(layout.unhooked(tensor.grad_fn))
        _put(kind, tensor)
        told.append(not layout.unhooked(tensor.grad_fn))
    return all(told)

"""Handlers of optree, C++ that takes trees of containers apart, and puts them together: what is in them is loaded, and
what says how a tree is built never changes. Trees in which there are objects of classes that a program may enter as
containers, now or later, break the graph."""

from __future__ import annotations

import collections
import sys
import types

from argand.capture.facts import classify
from argand.capture.facts.handlers import Function, Kwargs, names_here
from argand.capture.facts.interfaces import Interpreter
from argand.capture.facts.kinds import is_a
from argand.capture.facts.sources import CallSource, ConstSource
from argand.capture.facts.typefacts import is_tree_structure
from argand.capture.facts.values.symbolic import STANDS_FOR
from argand.capture.natives.rows import called
from argand.capture.objects import iteration
from argand.capture.objects.call_protocol.native_handlers import OF_PACKAGES, Args, unknown_native
from argand.capture.world import native_reads

_NODES = (list, tuple, dict, collections.OrderedDict, collections.defaultdict, collections.deque)


def _tree(interp: Interpreter, fn: Function, tree: object) -> object:
    """A tree as C++ may have it."""
    tree = interp.plain(tree)
    parts = [tree]
    while parts:
        part = parts.pop()
        if type(part) is collections.OrderedDict and interp.origin(part) is not part:
            raise unknown_native(fn)  # it goes by the order in which C has the keys, which none can ask for
        if type(part) in _NODES or (is_a(part, tuple) and hasattr(type(part), "_fields")):
            parts.extend(native_reads.held(part) or ())
        elif not (interp.is_tensor(part) or classify.is_constant(part) or type(part) in _LEAVES):
            raise unknown_native(fn)
    return tree


_LEAVES = STANDS_FOR | {types.FunctionType}


def _flatten(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
    if len(args) != 4 or kwargs:
        raise unknown_native(fn)
    tree, is_leaf, none_is_leaf, namespace = args
    in_order = vars(sys.modules["optree._C"])["is_dict_insertion_ordered"]
    interp.state.guard(CallSource(ConstSource(namespace), in_order), "equals", in_order(namespace))
    return interp.unread(fn, _tree(interp, fn, tree), called(interp, is_leaf), none_is_leaf, namespace)


def _unflatten(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
    spec, leaves = args
    return interp.unread(fn, spec, iteration.to_list(interp, leaves, hint=False))


def _flatten_up_to(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
    spec, tree = args
    return interp.unread(fn, spec, _tree(interp, fn, tree))


def _of_structures(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
    if kwargs or not args or not is_tree_structure(type(args[0])):
        raise unknown_native(fn)
    if not all(is_tree_structure(type(arg)) or classify.is_constant(arg) for arg in args):
        raise unknown_native(fn)
    return interp.unread(fn, *args)


_QUESTIONS = names_here(
    "num_leaves children child entries entry paths one_level compose is_prefix is_suffix is_leaf is_one_level "
    "__eq__ __ne__ __lt__ __le__ __gt__ __ge__ __len__ __hash__ __repr__"
)
OF_PACKAGES.update({
    "optree._C.flatten": _flatten, "optree.unflatten": _unflatten, "optree.flatten_up_to": _flatten_up_to,
    **{f"optree.{name}": _of_structures for name in _QUESTIONS},
    ".": _of_structures,  # properties, which tell neither module nor name
})  # fmt: skip

"""isinstance and issubclass as the interpreted program sees them."""

from __future__ import annotations

import abc
from typing import Final

from argand.capture.facts.interfaces import Interpreter
from argand.capture.facts.kinds import is_a, module_of
from argand.capture.facts.values.array_value import Traced
from argand.capture.facts.values.symbolic import STANDS_FOR
from argand.capture.facts.values.tainted_values import TaintedText
from argand.capture.objects import abstract_classes, descriptors, generators
from argand.capture.record import tensor_attributes


def is_instance(interp: Interpreter, value: object, cls: object) -> bool:
    """`is_a(value, cls)`."""
    if type(value) is generators.TracedGenerator:
        value = _A_GENERATOR
    elif interp.tainted and type(value) is TaintedText:
        value = value.like
    if type(cls) is tuple:
        return any(is_instance(interp, value, item) for item in interp.shadow(cls))
    meta = type(cls)
    if meta is not type and type(value) is not cls:
        legacy = module_of(meta) == "torch" and meta.__name__ == "tensortype"  # torch.FloatTensor
        if legacy and interp.is_tensor(value):
            return tensor_attributes.of_legacy_type(interp.state, value, cls)
        known = is_a(cls, type) and interp.known_meta(meta) and not abstract_classes.by_mark(interp, meta, value)
        if interp.types.python_level(meta, "__instancecheck__") and not known:
            hook = descriptors.lookup_special(interp, cls, "__instancecheck__")
            return interp.truth(interp.call(hook, (value,)))
    if type(value) not in interp.fast and is_a(cls, type) and interp.types.claims_a_class(type(value)):
        if type(value) in STANDS_FOR or type(value) is Traced:
            return is_subclass(interp, value.__class__, cls)
        return _of_claimed_class(interp, value, cls)
    return abstract_classes.answer(interp, isinstance, value, type(value), cls)


def _of_claimed_class(interp: Interpreter, value: object, cls: type) -> bool:
    """As `is_instance`, where reading `__class__` of the object runs code: abstract classes ask it first."""
    actual, hook = type(value), interp.types.lookup(type(cls), "__instancecheck__")
    if actual is cls:
        return True
    if hook is abc.ABCMeta.__instancecheck__:
        claimed = interp.getattr(value, "__class__")
        return is_subclass(interp, claimed, cls) or is_subclass(interp, actual, cls)
    if abstract_classes.is_protocol(cls):
        raise abstract_classes.undecided(cls, "asks an object that says itself of which class it is")
    if abstract_classes.answer(interp, issubclass, actual, actual, cls):
        return True
    claimed = interp.try_attr(value, "__class__")
    return is_a(claimed, type) and is_subclass(interp, claimed, cls)


def is_subclass(interp: Interpreter, value: object, cls: object) -> bool:
    """`issubclass(value, cls)`."""
    if type(cls) is tuple:
        return any(is_subclass(interp, value, item) for item in interp.shadow(cls))
    meta = type(cls)
    if meta is not type:
        if interp.types.python_level(meta, "__subclasscheck__") and not (is_a(cls, type) and interp.known_meta(meta)):
            hook = descriptors.lookup_special(interp, cls, "__subclasscheck__")
            return interp.truth(interp.call(hook, (value,)))
    return abstract_classes.answer(interp, issubclass, value, value, cls)


def _generator() -> object:
    yield


_A_GENERATOR: Final = _generator()

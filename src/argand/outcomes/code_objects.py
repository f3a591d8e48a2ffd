"""Code objects whose constants are any objects, and which read names that each process numbers anew."""

from __future__ import annotations

from collections.abc import Mapping
from types import CodeType
from typing import Any

from argand.bytecode.generators_at_yields import suspended
from argand.outcomes.references import Describer, Unstorable, plain
from argand.outcomes.resolver import Resolver, with_codes_of
from argand.outcomes.resume_codes import PARTS

Packed = tuple[CodeType, tuple[tuple[Any, bool], ...]]
"""The code without constants, and these: plain ones, and rows of the table."""


def described(code: CodeType, describer: Describer) -> Packed:
    """A code object in words that another process understands.

    Raises:
        Unstorable: it holds something that only this process knows.
    """
    constants = []
    for const in code.co_consts:
        if type(const) is not CodeType or PARTS.of(const) is not None or suspended(const) is not None:
            constants.append(describer.argument(const))
        elif _is_plain_code(const):
            constants.append((const, False))
        else:
            raise Unstorable("a code object within another holds objects of this process")
    return code.replace(co_consts=()), tuple(constants)


def _is_plain_code(code: CodeType) -> bool:
    return all(
        _is_plain_code(const) if type(const) is CodeType else plain(const) or _plain_set(const)
        for const in code.co_consts
    )


def _plain_set(value: Any) -> bool:
    return type(value) is frozenset and all(map(plain, value))


def unpacked(packed: Packed, resolver: Resolver, names: Mapping[str, str]) -> CodeType:
    """The code object again.

    Arguments:
        names: what globals are called here.
    """
    code, constants = packed
    filled = tuple([resolver.object(const) if is_row else const for const, is_row in constants])
    code = code.replace(co_consts=filled, co_names=tuple([names.get(name, name) for name in code.co_names]))
    return with_codes_of(PARTS.users(resolver.frame.code), code)

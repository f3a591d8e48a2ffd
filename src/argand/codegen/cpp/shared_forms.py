"""Kernels that differ only in numbers (sizes, strides, offsets): one function, which each calls with its own.

Layers that are alike but for their widths bring such kernels. So the compiler's time grows with the number of forms,
not of kernels.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from argand.codegen.cpp.numbers_apart import COMMENT, Apart, stand_ins, without_numbers

_LOCAL: Final = re.compile(r"\bbuf\w+\b")  # a register, or scratch memory


def with_shared_forms(kernels: Mapping[str, str]) -> list[str]:
    """The texts of kernels, in which those that share a function are one text.

    Arguments:
        kernels: name -> text.
    """
    groups: dict[str, dict[str, Apart]] = {}
    for name, text in kernels.items():
        # Where the compiler is asked for all that it can do, it makes use of all numbers.
        parts = Apart(text, ()) if "optimize(" in text else without_numbers(text)
        groups.setdefault(_form(name, parts.text), {})[name] = parts
    return [_shared(group, kernels) if len(group) > 1 else kernels[next(iter(group))] for group in groups.values()]


def _form(name: str, text: str) -> str:
    """A text without comments and names of its own."""
    names: dict[str, str] = {}
    bare = COMMENT.sub("", text).replace(_head(name), "")
    return _LOCAL.sub(lambda local: names.setdefault(local[0], f"local{len(names)}"), bare)


def _head(name: str) -> str:
    return f'extern "C" void {name}(void** ptrs, const i64* ints)'


def _shared(group: Mapping[str, Apart], kernels: Mapping[str, str]) -> str:
    """The function that the kernels of a form share, and those, which call it."""
    first = next(iter(group))
    chosen, parameters = stand_ins((parts.numbers for parts in group.values()), "n")
    name = f"{first}_and_like"
    declared = "".join(f", const i64 {parameter}" for parameter in parameters.values())
    head = f"static __attribute__((noinline)) void {name}(void** ptrs, const i64* ints{declared})"
    texts = [group[first].filled(chosen).replace(_head(first), head)]
    for number, kernel in enumerate(group):
        said = kernels[kernel].partition(_head(kernel))[0]
        given = "".join(f", {column[number]}" for column in parameters)
        texts.append(f"{said}{_head(kernel)} {{\n  {name}(ptrs, ints{given});\n}}\n")
    return "\n".join(texts)

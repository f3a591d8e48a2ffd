"""How dumps of loop programs and of kernels spell lists, tuples and dependencies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from argand.graph.sizes.expr import Expr, Var


def listed(label: str, items: list[str]) -> list[str]:
    """`label = [...]`, an item a line when there are several."""
    if len(items) < 2:
        return [f"{label} = [{items[0] if items else ''}]"]
    return [
        f"{label} =",
        f"    [   {items[0]},",
        *(f"        {item}," for item in items[1:-1]),
        f"        {items[-1]}]",
    ]


def comma_separated(items: Iterable[Expr]) -> str:
    return ", ".join(str(item) for item in items)


def python_tuple(items: tuple[Expr, ...]) -> str:
    """As Python prints a tuple: a comma behind a single item."""
    return f"({comma_separated(items)}{',' if len(items) == 1 else ''})"


def python_list(items: Iterable[Expr]) -> str:
    return f"[{comma_separated(items)}]"


def memory_dependency(buffer: str, index: Expr, sizes: Mapping[Var, Expr]) -> str:
    """A load or store of `buffer` at `index`, with the ranges of the loop variables that `index` uses."""
    used = ", ".join(f"{var}: {size}" for var, size in sizes.items() if var in index.free)
    return f"MemoryDep('{buffer}', {index}, {{{used}}})"


def star_dependency(buffer: str) -> str:
    """A use of all of `buffer`, by a call that is no loop."""
    return f"StarDep(name='{buffer}')"

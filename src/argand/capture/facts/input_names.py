"""Names of a graph's inputs, after where their values come from."""

from __future__ import annotations

import keyword
import re

from argand.capture.facts.sources import ClosureSource, GlobalSource, LocalSource, Source

_NOT_IDENTIFIER = re.compile(r"\W+")


def free_name(source: Source, taken: dict[str, int]) -> str:
    """The same, but one that no other input has: `a.b_c` and `a_b.c` are spelled alike.

    Arguments:
        taken: the names that inputs have -> the number for the next that is spelled alike.
    """
    plain = name = placeholder_name(source)
    while name in taken:
        name = f"{plain}_{taken[plain]}"
        taken[plain] += 1
    taken[name] = 1
    return name


def placeholder_name(source: Source) -> str:
    """The name of the graph input that `source` becomes: `a` for a local, `l_self_fc_weight` for what hangs below one.

    Example:
        >>> placeholder_name(LocalSource("a", 0))
        'a'
    """
    if isinstance(source, LocalSource | ClosureSource | GlobalSource):
        text = str(source.key)
        prefix = "" if isinstance(source, LocalSource) else "g_" if isinstance(source, GlobalSource) else "c_"
    else:
        text = source.friendly()
        prefix = {"local": "l_", "global": "g_", "closure": "c_"}.get(source.kind, "k_")
    clean = _NOT_IDENTIFIER.sub("_", text).strip("_") or "arg"
    if keyword.iskeyword(clean):  # of `lambda_`
        clean += "_"
    return prefix + clean if prefix or not clean[0].isdigit() else f"arg_{clean}"

"""Times, amounts and counts as text."""

from __future__ import annotations


def milliseconds(us: float) -> str:
    """A time with its unit, as torch.profiler writes it."""
    if us >= 1e6:
        return f"{us / 1e6:.3f}s"
    return f"{us / 1e3:.3f}ms" if us >= 1e3 else f"{us:.3f}us"


def amount(value: float | None, unit: str = "") -> str:
    """1.2 G, 34 M, 56 k; "" for None."""
    if value is None:
        return ""
    for factor, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.2f} {letter}{unit}"
    return f"{value:.0f} {unit}".rstrip()


def count(value: float) -> str:
    """12,345; below ten with a digit, unless it is whole."""
    return f"{value:,.0f}" if value >= 9.95 or value == int(value) else f"{value:.1f}"

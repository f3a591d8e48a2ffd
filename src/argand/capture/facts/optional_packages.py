"""Packages that capture knows and works without: None where they are not installed."""

try:
    import numpy
except ImportError:
    numpy = None  # type: ignore[assignment]

__all__ = ["numpy"]

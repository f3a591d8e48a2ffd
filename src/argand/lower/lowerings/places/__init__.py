"""Rules of operations that read or write at places which values tell: indices, scatters, searches."""

from argand.lower.lowerings.places import indexing, scatters, searches  # noqa: F401 (each registers its rules)

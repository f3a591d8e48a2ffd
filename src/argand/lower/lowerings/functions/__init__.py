"""Rules of functions from mathematics' tables, and of those that a few elementary ones make."""

from argand.lower.lowerings.functions import elementary, special  # noqa: F401 (each registers its rules)

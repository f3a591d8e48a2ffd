"""Classes that the program was told are not registered with abstract ones."""

from __future__ import annotations

import abc
from collections.abc import Iterable


class Unregistered:
    """A guard: none of these classes has been registered with the abstract one beside it.

    Registrations anywhere in the process are counted by `abc`; nothing is looked at while that number stays.
    """

    def __init__(self, pairs: Iterable[tuple[type, type]] = ()) -> None:
        self.pairs = list(pairs)
        self.token = None if self.pairs else abc.get_cache_token()

    def __call__(self, _: object) -> bool:
        token = abc.get_cache_token()
        if token == self.token:
            return True
        if any(issubclass(cls, base) for cls, base in self.pairs):
            return False
        self.token = token
        return True

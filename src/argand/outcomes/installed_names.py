"""Names that transformed code reads from the user's globals: `__compiled_fn_<n>` and `__resume_at_<offset>_<n>`.

They go when the last transformed code that reads them goes: with a recompile's entry, at `argand.reset()`, or with the
frame that still runs it then.
"""

from __future__ import annotations

import weakref
from types import CodeType

_READERS = "_argand_readers"


def install(names: dict[str, object], code: CodeType, namespace: dict[str, object]) -> None:
    """Put what `code` calls by name into a module's globals, for as long as the code lives."""
    if not names:
        return
    # Only the values hold the reference, so that it prolongs nothing's life, the namespace's neither.
    reader = weakref.ref(code, _Gone(namespace, tuple(names)))
    for name, value in names.items():
        before = namespace.get(name)
        readers = [] if before is None else getattr(before, _READERS, [])
        vars(value)[_READERS] = [*readers, reader]
        namespace[name] = value


class _Gone:
    """Called when a transformed code is gone: takes the names away that no other code reads."""

    __slots__ = ("names", "namespace")

    def __init__(self, namespace: dict[str, object], names: tuple[str, ...]) -> None:
        self.namespace = namespace
        self.names = names

    def __call__(self, reader: weakref.ref[CodeType]) -> None:
        if _READERS is None:  # the process ends, and this module's own names are gone already
            return
        for name in self.names:
            value = self.namespace.get(name)
            readers = [] if value is None else getattr(value, _READERS, [])
            left = [other for other in readers if other is not reader]
            if left:
                vars(value)[_READERS] = left
            elif readers:
                del self.namespace[name]

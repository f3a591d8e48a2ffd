"""`Source`: one step of the path by which a value was found; the kinds of steps are in sources.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from argand import errors
from argand.capture.facts.words import words

if TYPE_CHECKING:
    from argand._core import _C


_PLAIN_ACCESSORS = frozenset(
    words(
        """
    type instance_dict cell_contents func_code func_defaults func_kwdefaults func_globals method_self
    method_func
    """
    )
)


class LoadTarget(Protocol):
    """What `Source.load` needs of an emitter: each method appends the instructions of one step."""

    def load_source(self, source: Source) -> None: ...
    def load_local(self, name: str, index: int) -> None: ...
    def load_global(self, name: str) -> None: ...
    def load_closure(self, name: str, index: int) -> None: ...
    def load_closure_cell(self, name: str, index: int) -> None: ...
    def load_const(self, value: Any) -> None: ...
    def attr(self, name: str) -> None: ...
    def subscript(self, key: Any) -> None: ...
    def call_helper(self, helper: Any, extra: tuple[Any, ...] = ()) -> None: ...


class Source:
    """One step of a path; compared and hashed by structure, the hash computed once.

    Arguments:
        base: the source that this step starts from; None for roots.
        key: what the step selects (a name, an index, a dict key).
    """

    __slots__ = ("_hash", "_text", "base", "key")

    accessor: ClassVar[str] = ""
    root_kind: ClassVar[str] = "constant"
    _hash: int
    _text: str | None
    base: Source | None
    key: Any

    def __init__(self, base: Source | None, key: Any = None) -> None:
        object.__setattr__(self, "base", base)
        object.__setattr__(self, "key", key)
        object.__setattr__(self, "_hash", hash((type(self), base, type(key), self._key_identity())))
        object.__setattr__(self, "_text", None)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def _key_identity(self) -> Any:
        """What of the key takes part in comparison."""
        return self.key

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other):
            return False
        assert isinstance(other, Source)
        return (
            self._hash == other._hash
            and type(self.key) is type(other.key)
            and bool(self._key_identity() == other._key_identity())
            and self.base == other.base
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name()}>"

    @property
    def parent(self) -> Source:
        """The base, which exists: only roots have none."""
        if self.base is None:
            raise errors.InternalError(f"{type(self).__name__} has no base")
        return self.base

    @property
    def root(self) -> Source:
        """The first step of the path."""
        source = self
        while source.base is not None:
            source = source.base
        return source

    @property
    def kind(self) -> str:
        """ "local", "global", "builtin", "closure" or "constant": what the path starts from."""
        return self.root.root_kind

    def name(self) -> str:
        """The developer's spelling."""
        raise NotImplementedError

    def friendly(self) -> str:
        """The user's spelling."""
        text: str | None = self._text
        if text is None:
            text = self._spell()
            object.__setattr__(self, "_text", text)
        return text

    def _spell(self) -> str:
        """What `friendly` remembers; falls back on `name()`."""
        return self.name()

    def guard_node(self, tree: _C.GuardTree) -> int:
        """The node of this path in the guard tree."""
        return tree.child(self.parent.guard_node(tree), self.accessor, *self.arguments())

    def arguments(self) -> tuple[Any, ...]:
        """What the guard tree's accessor takes."""
        return () if self.key is None and self.accessor in _PLAIN_ACCESSORS else (self.key,)

    def load(self, emitter: LoadTarget) -> None:
        """Append the instructions that push the value."""
        raise NotImplementedError


def key_label(key: Any) -> str:
    """A key of a step, in a path."""
    return getattr(key, "__qualname__", None) or repr(key)


def const_label(obj: Any) -> str:
    """An object that is itself the root of a path."""
    if isinstance(obj, dict) and isinstance(obj.get("__name__"), str):
        return f"globals({obj['__name__']})"
    return getattr(obj, "__qualname__", None) or getattr(obj, "__name__", None) or f"<{type(obj).__name__}>"

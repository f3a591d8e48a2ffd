"""How argand's own operators are registered with torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

Functions = Mapping[str, Callable[..., Any]]


class Operators:
    """Operators `argand::<name>`, which are attributes of this.

    Arguments:
        table: schema, without a namespace -> dispatch key -> function.
        tags: by name.
    """

    def __init__(self, table: Mapping[str, Functions], tags: Mapping[str, Any] | None = None) -> None:
        self._library = torch.library.Library("argand", "FRAGMENT")  # the registration lives as long as this
        for schema, functions in table.items():
            name = schema.partition("(")[0]
            self._library.define(schema, tags=(tags or {}).get(name, ()))
            for key, function in functions.items():
                self._library.impl(name, function, key)
            setattr(self, name, getattr(torch.ops.argand, name).default)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"no operator argand::{name}")

"""The environment of processes that are measured."""

from __future__ import annotations

import os


def environment(cache: str) -> dict[str, str]:
    """This process's, with all compilers' caches in one directory, and modules' bytecode kept, as users keep it."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "ARGAND_CACHE_DIR": cache, "TORCHINDUCTOR_CACHE_DIR": cache, "PYTHONWARNINGS": "ignore"}

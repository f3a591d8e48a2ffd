"""Compiles argand's own kernels when argand is installed: `python -m argand.runtime.kernels.texts.install FOLDER`.

The folder then holds each library under the name that the cache has for it: with another compiler, another processor or
another text it has another name, and is compiled when it is first asked for.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from argand.config import config
from argand.errors import ArgandError
from argand.runtime import toolchain
from argand.runtime.kernels import texts


def compile_all(folder: Path) -> None:
    """Compile all into a folder, which is emptied. What does not compile here is left out."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)

    def compile_one(name: str) -> None:
        with contextlib.suppress(ArgandError):
            library = toolchain.compile_text(texts.text_here(name), toolchain.cpu_isa(), name=name)
            shutil.copyfile(library, folder / library.name)

    with tempfile.TemporaryDirectory() as cache, config.patch(cache_dir=cache), ThreadPoolExecutor() as pool:
        list(pool.map(compile_one, texts.NAMES))


if __name__ == "__main__":
    compile_all(Path(sys.argv[1]))

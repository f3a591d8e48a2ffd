"""The C++ of argand's own kernels for a CPU, which does not depend on the program, and its compilation beforehand.

In: the name of a file of this folder. Out: its text. `python -m argand.runtime.kernels.texts.install FOLDER` compiles
them all for this machine; `toolchain` takes what lies in `INSTALLED` for what it would compile.
"""

from __future__ import annotations

import re
from pathlib import Path

from argand.runtime import processor, toolchain

NAMES = ("gru", "int8", "lstm", "products", "steps")


def text_of(name: str) -> str:
    """The file `name`.h of this folder, with those that it includes."""
    text = (Path(__file__).parent / f"{name}.h").read_text(encoding="utf8")
    return re.sub(r'^#include "(\w+)\.h"$', lambda line: text_of(line[1]), text, flags=re.MULTILINE)


def text_here(name: str) -> str:
    """`text_of`, with what it is to know of this processor."""
    return ("#define VNNI\n" if name == "int8" and _multiplies_bytes() else "") + text_of(name)


def _multiplies_bytes() -> bool:
    """Whether the processor adds products of bytes to integers of 32 bits (VNNI), in vectors of the width in use."""
    wanted = {"avx512": "avx512_vnni", "avx2": "avx_vnni"}
    return wanted.get(toolchain.cpu_isa().name) in processor.facts().get("flags", "").split()

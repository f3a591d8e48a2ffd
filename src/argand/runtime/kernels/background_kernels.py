"""Kernels whose source is a file of argand's own, compiled by a thread of their own while the first graph is."""

from __future__ import annotations

import contextvars
import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from threading import Thread

from argand import events
from argand.runtime import process, toolchain
from argand.runtime.launch import make_kernel
from argand.runtime.profile import Kernel, label


def text_of(name: str) -> str:
    """The file `name`.h beside this one, with those that it includes."""
    text = (Path(__file__).parent / f"{name}.h").read_text(encoding="utf8")
    return re.sub(r'^#include "(\w+)\.h"$', lambda line: text_of(line[1]), text, flags=re.MULTILINE)


def compiled(
    name: str,
    functions: Mapping[str, tuple[int, int]],
    forget: Callable[[], None],
    *,
    defined: Sequence[str] = (),
    patient: bool = False,
) -> Future[dict[str, Kernel]]:
    """The kernels of the file `name`.h beside this one; none where they do not compile.

    Arguments:
        functions: C functions, and how many tensors and numbers they take.
        forget: has the next caller begin again: a forked child has no such thread.
        defined: macros that the file asks for.
        patient: nobody waits for them.
    """
    kernels: Future[dict[str, Kernel]] = Future()

    def compile_them() -> None:
        process.PATIENT.set(patient)
        try:
            text = "".join(f"#define {macro}\n" for macro in defined)
            text += text_of(name)
            library = toolchain.load_text(text, toolchain.cpu_isa(), name=name)
            by_name = {}
            for function, (tensors, ints) in functions.items():
                by_name[function] = make_kernel(library.address(function), function, tensors, ints)
                label(by_name[function], function)
            kernels.set_result(by_name)
        except Exception as error:  # whatever it is: somebody waits for an answer
            events.emit("fallback", "runtime", str(error), scope=name, reason="the kernel does not compile")
            kernels.set_result({})

    try:
        run = contextvars.Context().run
        Thread(target=run, args=(compile_them,), name=f"argand-{name}", daemon=True).start()
    except RuntimeError:  # this process may have no more threads
        contextvars.copy_context().run(compile_them)
    os.register_at_fork(after_in_child=lambda: None if kernels.done() else forget())
    return kernels

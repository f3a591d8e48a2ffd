"""Kernels whose source is a file of argand's own. What was not compiled when argand was installed, a thread of its own
compiles while the first graph is."""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable, Mapping
from concurrent.futures import Future

from argand import events, threads
from argand.errors import ArgandError
from argand.runtime import process, toolchain
from argand.runtime.kernels.texts import text_here
from argand.runtime.launch import make_kernel
from argand.runtime.profile import Kernel, label


@functools.cache
def available(*instructions: str) -> bool:
    """Whether kernels for one of these instruction sets can be compiled here: GCC does (Clang's threads are another
    runtime's than torch's)."""
    try:
        return toolchain.cpu_isa().name in instructions and not toolchain.find_toolchain().is_clang
    except ArgandError:
        return False


def compiled(
    name: str,
    functions: Mapping[str, tuple[int, int]],
    forget: Callable[[], None],
    *,
    patient: bool = False,
) -> Future[dict[str, Kernel]]:
    """The kernels of the file `name`.h of `texts`; none where they do not compile.

    Arguments:
        functions: C functions, and how many tensors and numbers they take.
        forget: has the next caller begin again: a forked child has no such thread.
        patient: nobody waits for them.
    """

    def compile_them() -> dict[str, Kernel]:
        process.PATIENT.set(patient)
        try:
            library = toolchain.load_text(text_here(name), toolchain.cpu_isa(), name=name)
            by_name = {}
            for function, (tensors, ints) in functions.items():
                by_name[function] = make_kernel(library.address(function), function, tensors, ints)
                label(by_name[function], function)
        except threads.Ending:
            return {}
        except Exception as error:  # whatever it is: somebody waits for an answer
            events.emit("fallback", "runtime", str(error), scope=name, reason="the kernel does not compile")
            return {}
        return by_name

    try:
        return threads.begin(compile_them, f"argand-{name}", context=contextvars.Context(), forget=forget)
    except RuntimeError:  # this process may have no more threads
        kernels: Future[dict[str, Kernel]] = Future()
        kernels.set_result({} if patient else contextvars.copy_context().run(compile_them))
        return kernels

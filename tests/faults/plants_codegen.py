"""Faults to plant in generated code: C++ kernels, their vectors and tails, the host module."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from plants import plant

# ----------------------------------------------------------------------- C++ code generation


def _override(name: str, function: Callable[..., str]) -> None:
    from argand.codegen.cpp import overrides

    setattr(overrides, name, function)


@plant
def codegen_wrong_neg() -> None:
    _override("neg", lambda x: f"decltype({x})(2 * {x})")


@plant
def codegen_compile_error() -> None:
    _override("neg", lambda x: f"-{x}.value")


@plant
def codegen_nan() -> None:
    _override("sqrt", lambda x: f"decltype({x})({x} * 0.0 / 0.0)")


@plant
def codegen_crashes() -> None:
    _override("tanh", lambda x: f"decltype({x})(*(volatile {'int'}*)8 + {x})")


@plant
def codegen_hangs() -> None:
    _override("tanh", lambda x: f"({{ for (volatile int i = 0; i >= 0; i = 1) {{}} {x}; }})")


@plant
def codegen_raises() -> None:
    def tanh(x: str) -> str:
        raise KeyError("tanh")

    _override("tanh", tanh)


@plant
def codegen_wrong_constant() -> None:
    """Text of kernels: maximum comes out negated."""
    _in_text("maximum(tmp", "-maximum(tmp")


def _in_text(old: str, new: str, vector_only: bool = False) -> None:
    from argand.codegen import cpp

    original = cpp.generate

    def generate(kernels: Any, isa: Any, *rest: Any, **kwargs: Any) -> Any:
        import dataclasses

        made = original(kernels, isa, *rest, **kwargs)
        if vector_only and isa.vector_bytes == 0:
            return made
        changes: dict[str, Any] = {"text": _body_replaced(made.text, old, new)}
        if made.parts:
            changes["parts"] = tuple(_body_replaced(part, old, new) for part in made.parts)
        return dataclasses.replace(made, **changes)

    cpp.generate = generate


def _body_replaced(text: str, old: str, new: str) -> str:
    head, separator, rest = text.partition('extern "C"')
    return head + separator + rest.replace(old, new)


# ----------------------------------------------------------------------- the vector path


@plant
def vector_wrong_minimum() -> None:
    _in_text("minimum(tmp", "-minimum(tmp", vector_only=True)


@plant
def vector_wrong_exp() -> None:
    _in_text("exp(tmp", "-exp(tmp", vector_only=True)


@plant
def vector_compile_error() -> None:
    _in_text("sin(tmp", "no_such_sine(tmp", vector_only=True)


# ----------------------------------------------------------------------- host code


def _host(before_return: str, result: str = "{}", head: str = "") -> None:
    """Host modules run `before_return` at the end of each call, and return `result` made of their results."""
    from argand.codegen.host import module

    original = module.host_module

    def host_module(*args: Any, **kwargs: Any) -> str:
        text = original(*args, **kwargs)
        start, separator, rest = text.partition("def call(args):")
        body, end, tail = rest.partition("\n\n\ndef ")
        lines = []
        for line in body.split("\n"):
            if line.startswith("    return ("):
                value = line.strip().removeprefix("return ")
                lines += [f"    {before_return}"] if before_return else []
                lines += [f"    _out = {value}", f"    return {result.format('_out')}"]
            else:
                lines.append(line)
        return start + head + separator + "\n".join(lines) + end + tail

    module.host_module = host_module


@plant
def host_raises() -> None:
    _host("undefined_name")


@plant
def host_crashes() -> None:
    _host("__import__('ctypes').string_at(0)")


@plant
def host_hangs() -> None:
    _host("while True: __import__('time').sleep(0.05)")


@plant
def host_leaks() -> None:
    """Results are kept for ever."""
    _host("", "_kept.append({0}) or {0}", "_kept = []\n\n\n")


@plant
def host_wrong_value() -> None:
    """The first result is multiplied by two."""
    _host("", "({0}[0] * 2, *{0}[1:])")


@plant
def host_wrong_stride() -> None:
    """The first result comes back in another layout."""
    _host("", "({0}[0].t().contiguous().t() if {0}[0].dim() == 2 else {0}[0], *{0}[1:])")


# ----------------------------------------------------------------------- ends of loops, memory, later calls


@plant
def codegen_wrong_start() -> None:
    """Maxima start at zero."""
    from argand.codegen.cpp.reduce import Accumulator

    original = Accumulator._start

    def start(self: Any) -> str:
        return self._spread("0") if self.kind == "max" else original(self)

    Accumulator._start = start  # type: ignore[method-assign]


def _in_kernels(insert: Callable[[str], str | None]) -> None:
    """Put text after the opening line of kernels whose text `insert` has something for."""

    from argand.codegen import cpp

    original = cpp.generate

    def change(text: str) -> str:
        parts = re.split(r'(?=extern "C" void )', text)
        for number, part in enumerate(parts[1:], 1):
            wanted = insert(part)
            if wanted:
                line, _, rest = part.partition("\n")
                parts[number] = f"{line}\n{wanted}\n{rest}"
        return "".join(parts)

    def generate(kernels: Any, isa: Any, *rest: Any, **kwargs: Any) -> Any:
        import dataclasses

        made = original(kernels, isa, *rest, **kwargs)
        return dataclasses.replace(
            made, text=change(made.text), **({"parts": tuple(map(change, made.parts))} if made.parts else {})
        )

    cpp.generate = generate


@plant
def codegen_deadlocks() -> None:
    """Threads of kernels with an exponential wait for a lock that nobody gives back."""
    _in_kernels(
        lambda text: (
            "  static volatile int lock = 1;\n  #pragma omp parallel\n  { while (lock) {} }"
            if "exp(tmp" in text
            else None
        )
    )


@plant
def codegen_writes_outside() -> None:
    """Kernels with a tangent write far in front of their first result."""
    _in_kernels(
        lambda text: (
            "  for (i64 k = 1; k < (1 << 28); ++k) ((volatile char*)ptrs[0])[-k] = 1;" if "tanh(tmp" in text else None
        )
    )


@plant
def codegen_divides_by_zero() -> None:
    """SIGFPE."""
    _in_kernels(
        lambda text: "  volatile int zero = 0; volatile int one = 7 / zero; (void)one;" if "tanh(tmp" in text else None
    )


@plant
def codegen_second_call() -> None:
    """From its second call on a kernel with a cosine writes its result somewhere else."""
    _in_kernels(lambda text: "  static int calls = 0; if (calls++) return;" if "cos(tmp" in text else None)


@plant
def codegen_leaks() -> None:
    """Each call of a kernel with a sine takes a megabyte and never gives it back."""
    _in_kernels(
        lambda text: (
            "  { char* p = (char*)__builtin_malloc(1 << 20);"
            " for (int k = 0; k < (1 << 20); k += 512) ((volatile char*)p)[k] = 1; }"
            if "sin(tmp" in text
            else None
        )
    )


@plant
def codegen_wrong_size() -> None:
    """Kernels of varying sizes leave out the last row."""

    _in_text("= ints[0];", "= ints[0] - 1;")


# ----------------------------------------------------------------------- ends of vectors


@plant
def vector_wrong_tail() -> None:
    """The last element of a row that does not fill a vector is not stored."""
    _in_tails(r"store_tail\(((?:[^;])*), (\d+)\);", lambda m: f"store_tail({m[1]}, {int(m[2]) - 1});")


@plant
def vector_reads_beyond() -> None:
    """Sums take one element too many at the ends of rows."""
    _in_tails(r"tail_mask<(\w+)>\((\d+)\)", lambda m: f"tail_mask<{m[1]}>({int(m[2]) - 1})")


def _in_tails(pattern: str, change: Callable[[re.Match[str]], str]) -> None:
    from argand.codegen import cpp

    original = cpp.generate

    def body(text: str) -> str:
        head, separator, rest = text.partition('extern "C"')
        return head + separator + re.sub(pattern, change, rest)

    def generate(kernels: Any, isa: Any, *rest: Any, **kwargs: Any) -> Any:
        import dataclasses

        made = original(kernels, isa, *rest, **kwargs)
        if isa.vector_bytes == 0:
            return made
        parts = {"parts": tuple(map(body, made.parts))} if made.parts else {}
        return dataclasses.replace(made, text=body(made.text), **parts)

    cpp.generate = generate

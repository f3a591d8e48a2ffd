"""How one kernel is compiled and launched, as host module text prints it: plain literals, checked here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from argand.errors import InternalError
from argand.quick_dataclasses import dataclass

INTEGERS = {"i32": 4, "i64": 8}  # Triton's integer types that a kernel takes, and their bytes
_POINTER = re.compile(r"\*[a-z][a-z0-9]*")


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """What the runtime needs of a `codegen.triton.KernelSpec`.

    Arguments:
        name: of the function in the source text.
        signature: Triton's type of each argument that is no constant: first the pointers, then the integers.
        constants: the `tl.constexpr` arguments, which come last, and their values.
        num_warps, num_stages: of the launch.
        checks: the kernel has assertions, which must be compiled in.
        multiples: places of integers that are multiples of 16, which lets accesses be as wide.
    """

    name: str
    signature: tuple[str, ...]
    constants: tuple[tuple[str, int], ...]
    num_warps: int
    num_stages: int
    checks: bool = False
    multiples: tuple[int, ...] = ()

    @property
    def num_tensors(self) -> int:
        """How many of the arguments are pointers."""
        return sum(kind[0] == "*" for kind in self.signature)

    @property
    def num_ints(self) -> int:
        """How many of the arguments are integers."""
        return len(self.signature) - self.num_tensors


def launch_spec(name: str, literal: object) -> LaunchSpec:
    """The spec of the kernel `name`.

    Arguments:
        literal: an object with the fields of `LaunchSpec`, a mapping of them, or a sequence of them without the name.

    Raises:
        InternalError: it is none of these, or says what no kernel can be.
    """
    if isinstance(literal, LaunchSpec):
        return literal
    if isinstance(literal, Mapping):
        fields = dict(literal)
    elif isinstance(literal, Sequence) and not isinstance(literal, str):
        fields = dict(zip(("signature", "constants", "num_warps", "num_stages", "checks"), literal))
    else:
        fields = {part: getattr(literal, part, None) for part in LaunchSpec.__slots__}
    try:
        return _checked(name, fields)
    except (KeyError, TypeError, ValueError) as error:
        raise InternalError(f"kernel {name}: this is no description of a launch: {literal!r} ({error})") from error


def _checked(name: str, fields: dict[str, Any]) -> LaunchSpec:
    signature = tuple(str(kind) for kind in fields["signature"])
    pointers = [kind for kind in signature if _POINTER.fullmatch(kind)]
    if signature[: len(pointers)] != tuple(pointers):
        raise ValueError("pointers come before integers")
    unknown = [kind for kind in signature[len(pointers) :] if kind not in INTEGERS]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not a type of an argument")
    if not name.isidentifier() or fields.get("name", name) != name:
        raise ValueError("its name is another")
    warps, stages = int(fields["num_warps"]), int(fields["num_stages"])
    if not (1 <= warps <= 32 and warps & (warps - 1) == 0 and 0 <= stages <= 16):
        raise ValueError("num_warps or num_stages is out of bounds")
    constants = tuple((str(key), int(value)) for key, value in fields["constants"])
    return LaunchSpec(name, signature, constants, warps, stages, bool(fields.get("checks", False)))

"""Operators of libraries in words, by which a later process tells that they are the ones that were traced.

What a trace keeps of an operator comes from its schema, its fake, its autograd formula, its rules for vmap, autocast
and modes. Torch holds the Python functions of those that `torch.library.custom_op` and `triton_op` make, and fakes of
all. Of others it says which file registered a kernel: those that run as they are, behind a fake, are told by that file.
Kernels of C++ and formulas that only the dispatcher holds have no words: `Unknown`.
"""

from __future__ import annotations

import re
from types import FunctionType
from typing import Any, Final

import torch
from torch._library import custom_ops, simple_registry

from argand.graph.operators.namespaces import is_theirs
from argand.outcomes import fingerprints
from argand.outcomes.reads import TORCH, Reads, Unknown

_KERNEL: Final = re.compile(r"([\w ()]+)(?:\[alias\])?: registered at (.*):\d+ :: \(none\) \[ boxed \]")
_OPAQUE: Final = frozenset(("CompositeExplicitAutograd", "CPU", "CUDA", "XPU", "MPS", "HPU", "MTIA", "PrivateUse1"))
"""Keys of kernels that run as they are, when there is a fake."""
_OF_DEFINITIONS: Final = _OPAQUE | {
    "Meta", "Autograd", "ADInplaceOrView", "ADInplaceOrView (inactive)", "FuncTorchBatched", "BackendSelect",
}  # fmt: skip
"""Keys of a definition's kernels; where it writes, torch registers two that note that."""
_TABLES: Final = ("py_kernels", "python_key_table", "functorch_table")
"""What `py_impl` of an operator fills."""


def packet_of(name: str) -> Any:
    """The operator of a name, `namespace::operator`, with all its overloads."""
    namespace, _, rest = name.partition("::")
    return getattr(getattr(torch.ops, namespace), rest)


def identity(operator: Any) -> str:
    """A digest of what an operator, or each overload of a packet, is made of.

    Raises:
        Unknown: nothing tells.
    """
    seen: set[str] = set()

    def add(one: Any) -> None:
        for overload in _overloads(one):
            name = overload._name
            reads.words.append(f"operator {name}")
            if is_theirs(overload) and name not in seen:
                seen.add(name)
                _describe(overload, reads)

    reads = Reads(add)
    try:
        add(operator)
        return reads.digest()
    except RecursionError as error:
        raise Unknown(f"{operator} is made of too much") from error
    except Unknown as error:
        raise Unknown(f"{operator} {error}") from error


def _overloads(operator: Any) -> list[Any]:
    if type(operator) is torch._ops.OpOverload:
        return [operator]
    return [getattr(operator, name) for name in operator.overloads()]


def _describe(operator: Any, reads: Reads) -> None:
    name = operator._name
    dump = torch._C._dispatch_dump(name)
    kernels: dict[str, str] = {}
    for line in dump.splitlines()[4:]:
        match = _KERNEL.fullmatch(line)
        if match is None or match[1] in kernels:
            raise Unknown(f"has a kernel of C++, or several: {line.partition(':')[0]}")
        kernels[match[1]] = match[2]
    entry = simple_registry.singleton.find(name)
    rules, fakes = entry.torch_dispatch_rules._data, entry.fake_impl.kernels
    if any(getattr(operator, table, None) for table in _TABLES) or getattr(entry.effect, "_effect", None) is not None:
        raise Unknown("has rules of its own")
    if len(fakes) > 1 or (fakes and "Meta" not in kernels):
        raise Unknown("has several fakes")
    reads.words.append(f"{operator._schema} {sorted(map(str, operator.tags))} {sorted(kernels)}")
    definition = custom_ops.OPDEFS.get(name)
    if definition is not None and set(kernels.values()) == {custom_ops.__file__}:
        return _describe_definition(definition, kernels, rules, reads)
    if rules or not fakes or not kernels.keys() <= _OPAQUE | {"Meta"}:
        raise Unknown(f"has kernels that only the dispatcher knows: {', '.join(sorted(kernels))}")
    reads.value(fakes[0].func)
    for file in sorted(set(kernels.values())):
        content = fingerprints.of_file(file)
        if not content or not file.endswith(".py") or file.startswith(TORCH):
            raise Unknown(f"has kernels that {file} registers")
        reads.words.append(content)


def _describe_definition(definition: Any, kernels: dict[str, str], rules: dict[Any, Any], reads: Reads) -> None:
    """Of one that `torch.library.custom_op` or `triton_op` made, which holds all its functions."""
    for key in kernels.keys() - _OF_DEFINITIONS:
        if not key.startswith("Autocast") or "inactive" in key:
            raise Unknown(f"has kernels for {key}")
    if rules.keys() != definition._torch_dispatch_fns.keys():
        raise Unknown("has rules of its own")
    casts = getattr(definition, "_autocast_dtype", {})  # torch 2.11 has none, and casts as a closure says
    if sum(key.startswith("Autocast") for key in kernels) != len(casts):
        raise Unknown("has rules of its own for autocast")
    reads.words.append(f"{casts} {sorted(definition._disabled_kernel)}")
    for part in ("_abstract_fn", "_setup_context_fn", "_backward_fn", "_vmap_fn"):
        reads.words.append(part)
        reads.value(getattr(definition, part))
    for mode, rule in definition._torch_dispatch_fns.items():
        reads.words.append(f"rule {fingerprints.name_of(mode)}")
        reads.value(rule)
    for device, function in [(None, definition._init_fn), *definition._backend_fns.items()]:  # they run as they are
        own = function
        while type(own) is FunctionType and own.__module__.startswith("torch._library."):
            cells = dict(zip(own.__code__.co_freevars, own.__closure__ or ()))
            if "fn" not in cells:
                raise Unknown("has a kernel that torch made")
            own = cells["fn"].cell_contents
        if type(own) is not FunctionType:
            raise Unknown(f"runs a {fingerprints.name_of(type(own))}")
        content = fingerprints.of_module(own.__module__)
        reads.words.append(f"kernel {device} {own.__qualname__} {fingerprints.of_function(own)} {content}")

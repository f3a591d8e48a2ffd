"""How DTensors are laid out, in words: a mesh by its devices, names and process groups.

A later process has a mesh of its own, of the same shape over the same ranks, whose groups have the names that stand in
the compiled graph: it is found among the objects there are. None is made, for that would communicate.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any, Final

import torch

from argand.graph import dtensors
from argand.outcomes.references import Parts, Unstorable
from argand.outcomes.resolver import Mismatch

_HERE: Final = f"{__name__}:"


def special() -> dict[type, Callable[[Any], Parts]]:
    """How objects of DTensor's types, and what capture made of them, are described; of those that are imported."""
    module = sys.modules.get("torch.distributed.tensor")
    if module is None:
        return {}
    spec = sys.modules["torch.distributed.tensor._dtensor_spec"]
    return {
        module.DeviceMesh: lambda mesh: (f"{_HERE}mesh", _facts(mesh), f"{_HERE}mesh_that_is"),
        module.Shard: lambda one: (f"{_HERE}shard", (one.dim,)),
        module.Replicate: lambda one: (f"{_HERE}replicate", ()),
        module.Partial: lambda one: (f"{_HERE}partial", (one.reduce_op,)),
        spec.DTensorSpec: _spec_parts,
        spec.TensorMeta: lambda meta: (f"{_HERE}tensor_meta", tuple(meta)),
        dtensors.Layout: lambda one: (f"{_HERE}layout", (one.spec, one.part)),
        dtensors.Edge: lambda one: (f"{_HERE}edge", (one.spec, one.placements, one.several, one.records, one.packed)),
        dtensors.Entered: lambda one: (f"{_HERE}entered", (one.edge,)),
        dtensors.Repeated: lambda one: (f"{_HERE}repeated", (one.steps,)),
        dtensors.Asked: lambda one: (f"{_HERE}asked", (one.function, one.name, one.rest, tuple(one.named.items()))),
    }


def _facts(mesh: Any) -> tuple[object, ...]:
    """What tells a mesh from others: devices, ranks, names of its dimensions and of their groups."""
    names = tuple(getattr(mesh, "_dim_group_names", ()))
    if len(names) != mesh.ndim:
        raise Unstorable("a mesh whose process groups are not known")
    return mesh.device_type, tuple(mesh.shape), tuple(mesh.mesh.flatten().tolist()), mesh.mesh_dim_names, names


_meshes: weakref.WeakValueDictionary[tuple[object, ...], Any] = weakref.WeakValueDictionary()


def mesh(*facts: object) -> Any:
    """The mesh of this process of which all this is so.

    Raises:
        Mismatch: there is none.
    """
    known = _meshes.get(facts)
    if known is not None and _facts(known) == facts:
        return known
    cls: Any = dtensors.mesh_class()
    for one in [] if cls is None else gc.get_objects():
        if type(one) is cls and len(getattr(one, "_dim_group_names", ())) == one.ndim and _facts(one) == facts:
            _meshes[facts] = one
            return one
    raise Mismatch(f"there is no mesh of {facts}")


def mesh_that_is(held: Any, *facts: object) -> Any:
    """A mesh that the guards find, if all this is so of it."""
    if type(held) is not dtensors.mesh_class() or _facts(held) != facts:
        raise Mismatch(f"the mesh there is not one of {facts}")
    return held


def _spec_parts(spec: Any) -> Parts:
    parts = spec.mesh, spec.placements, spec.tensor_meta
    if type(spec)(*parts) != spec:
        raise Unstorable("a DTensor whose dimensions are cut in an order of its own")
    return f"{_HERE}spec", parts


def spec(*parts: object) -> Any:
    return sys.modules["torch.distributed.tensor._dtensor_spec"].DTensorSpec(*parts)


def tensor_meta(*parts: object) -> Any:
    return sys.modules["torch.distributed.tensor._dtensor_spec"].TensorMeta(*parts)


def shard(dim: int) -> Any:
    return sys.modules["torch.distributed.tensor"].Shard(dim)


def replicate() -> Any:
    return sys.modules["torch.distributed.tensor"].Replicate()


def partial(operation: str) -> Any:
    return sys.modules["torch.distributed.tensor"].Partial(operation)


def layout(of: Any, part: tuple[object, ...]) -> dtensors.Layout:
    one = dtensors.Layout.__new__(dtensors.Layout)
    one.spec, one.part = of, part
    return one


def edge(of: Any, placements: Any, several: bool, records: bool, packed: torch.Size | None) -> dtensors.Edge:
    return dtensors.Edge(of, placements, several, records, packed)


def entered(of: dtensors.Edge) -> Callable[[torch.Tensor], torch.Tensor]:
    return dtensors.entered(of)


def repeated(steps: tuple[dtensors.Step, ...]) -> dtensors.Repeated:
    return dtensors.Repeated(steps)


def asked(function: Any, name: str, rest: tuple[Any, ...], named: tuple[tuple[str, Any], ...]) -> dtensors.Asked:
    return dtensors.Asked(function, name, rest, dict(named))

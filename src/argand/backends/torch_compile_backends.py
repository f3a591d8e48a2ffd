"""torch.compile's own backends, for argand's graphs: the one module that imports torch's compiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx


def torch_backend_names() -> list[str]:
    """Names of torch.compile's own backends (importing torch._dynamo, which takes a second)."""
    import torch._dynamo as dynamo

    return [name for name in dynamo.list_backends(exclude_tags=None) if name != "argand"]


def torch_backend(name: str) -> Callable[..., Callable[..., Any]] | None:
    """One of torch.compile's backends, for our graphs; None when it has none of this name."""
    if name not in torch_backend_names():
        return None
    from torch._dynamo import lookup_backend

    compile_graph: Callable[..., Callable[..., Any]] = lookup_backend(name)

    def backend(gm: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
        if gm.meta.get("unbacked"):  # they would trace it with the values of these inputs
            return gm.forward
        return compile_graph(gm, list(example_inputs), **options)

    backend.__name__ = name
    return backend

"""All handlers of torch's functions: who imports this module has them registered."""

from __future__ import annotations

from argand.capture import (
    arrays,
    modules,
    optimizers,
    subclass_calls,
    tensor_methods,
    torch_autograd,
    torch_contexts,
    torch_control,
    torch_flex,
    torch_higher,
    torch_hooks,
    torch_tables,
)

TABLES = (
    arrays,
    modules,
    optimizers,
    subclass_calls,
    tensor_methods,
    torch_autograd,
    torch_contexts,
    torch_control,
    torch_flex,
    torch_higher,
    torch_hooks,
    torch_tables,
)

"""All handlers of torch's functions: who imports this module has them registered."""

from __future__ import annotations

from argand.capture.arrays import traced_arrays
from argand.capture.torch_functions import (
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
    traced_arrays,
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

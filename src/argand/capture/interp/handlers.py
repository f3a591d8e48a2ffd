"""All handlers of native code and of torch's functions: who imports this module has them registered."""

from argand.capture.arrays import traced_arrays  # noqa: F401
from argand.capture.natives import (  # noqa: F401
    builtin_functions,
    builtin_methods,
    iteration_functions,
    library_functions,
    logging_functions,
    object_methods,
    operator_functions,
    ordered_lists,
    process_state,
    random_generators,
    trees,
    value_classes,
    weak_references,
)
from argand.capture.torch_functions import (  # noqa: F401
    modules,
    optimizers,
    random_state,
    subclass_calls,
    tensor_methods,
    torch_contexts,
    torch_tables,
)
from argand.capture.torch_functions.distributed import collectives, dtensor_calls  # noqa: F401
from argand.capture.torch_functions.gradients import torch_autograd, torch_backward  # noqa: F401
from argand.capture.torch_functions.higher_order import (  # noqa: F401
    autograd_functions,
    control_flow,
    dual_levels,
    flex_attention,
    tensor_hooks,
    transforms,
)
from argand.capture.torch_functions.nested import nested_calls  # noqa: F401

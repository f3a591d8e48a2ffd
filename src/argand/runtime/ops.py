"""The operators that argand itself defines, under `torch.ops.argand`."""

from __future__ import annotations

import functools
from typing import Any

import torch

from argand.graph.operators.collectives import collective_ops
from argand.graph.operators.ctc_ops import ctc_ops
from argand.graph.operators.custom_backward import custom_backward
from argand.graph.operators.device_ops import device_ops
from argand.graph.operators.jagged_ops import jagged_ops
from argand.graph.operators.numpy_ops import numpy_ops
from argand.graph.operators.optimizer_ops import optimizer_ops
from argand.graph.operators.random_ops import random_ops
from argand.runtime.gpu.operators.flex import flex_ops
from argand.runtime.kernels.int8 import int8_ops
from argand.runtime.kernels.packed_weights import has_packing, packed_ops
from argand.runtime.kernels.recurrent import recurrent_ops
from argand.runtime.kernels.steps import steps_ops


@functools.cache
def argand_ops() -> Any:
    """`torch.ops.argand`, with every operator of argand's registered: what generated code refers to."""
    random_ops(), device_ops(), optimizer_ops(), recurrent_ops(), int8_ops()
    steps_ops(), flex_ops(), custom_backward(), collective_ops(), ctc_ops(), jagged_ops(), numpy_ops()
    if has_packing():
        packed_ops()
    return torch.ops.argand

"""Autograd ahead of time: a torch-level graph goes in, functional ATen graphs come out.

In: `fx.GraphModule` with torch functions and methods, and the example inputs. Out: `graph.nodes.program.AtenProgram`,
whose graph has no in-place op, and `runtime.wrap`, which turns a callable for that graph into one for the user's
(mutations written back, aliases rebuilt).

* `recording`: what a trace records; `ops`: how single operations are traced, in terms of it.
* `tracing`: a torch-level graph into an ATen program, without and with its backward.
* `partitioning`: a joint graph cut in two. `training` puts the halves on autograd's tape.
"""

from argand.autograd.runtime import wrap
from argand.autograd.tracing.gradients import needs_autograd
from argand.autograd.tracing.trace import trace_inference

__all__ = ["needs_autograd", "trace_inference", "wrap"]

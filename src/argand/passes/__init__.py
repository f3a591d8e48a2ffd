"""Passes over ATen graphs: an `AtenProgram` goes in, the same program with a smaller set of ops and less work comes
out.

Each pass is a function `(AtenProgram) -> int`, which changes the graph in place and says how many changes it made. It
has
a name (`pipeline.Pass`), reads nothing but the program, and can be called alone. `verify` holds the rules of the graph.
"""

from argand.passes.pipeline import AT_MANY_SIZES, INFERENCE, Pass, run_passes
from argand.passes.verify import verify

__all__ = ["AT_MANY_SIZES", "INFERENCE", "Pass", "run_passes", "verify"]

"""Sizes and numbers that vary, known by formulas over symbols or only when the program runs.

In comes an operation on a `SymbolicInt`, or on tensors with such sizes; out goes its result with a formula, and what
must hold for it, which becomes a guard. `symbolic_policy` decides what varies, `symbolic_state` knows the symbols,
`symbolic_tensors` and `symbolic_calls` the tensors, `unbacked` the numbers that depend on data, `subclasses` tensors
of the program's own classes.

To add: an operation whose result has a size that depends on data goes to `unbacked_ops`; one whose result's size is
not one formula (the least of two sizes) to `piecewise`.
"""

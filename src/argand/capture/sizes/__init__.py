"""Sizes and numbers that vary, known by formulas over symbols or only when the program runs.

In comes an operation on a `SymbolicInt`, or on tensors with such sizes; out goes its result with a formula, and what
must hold for it, which becomes a guard.
"""

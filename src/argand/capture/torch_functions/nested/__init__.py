"""Nested tensors of the jagged layout. In: those from outside, and calls that make or take them. Out: operations on
their values and offsets.

The stand-in of one is a nested tensor over stand-ins (`stand_ins`). What torch does with it is decided by its dispatch,
which is Python and interpreted like any (`dispatching`), down to operations on plain tensors; what of that code looks
at the process, or at data, is answered otherwise (`nested_calls`).
"""

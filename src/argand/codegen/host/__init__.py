"""Host code: the Python module that runs a schedule.

In: `ir.kernel.Schedule` and the C++ text of its kernels. Out: the text of a Python module with `call(args)`:
allocations, extern calls, kernel launches, frees, outputs. The text shown is the text executed, and
`python output_code.py` runs it on random inputs.
"""

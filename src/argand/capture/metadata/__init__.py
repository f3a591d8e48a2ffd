"""Sizes, strides, dtypes and devices of results, found without running a kernel; and whether eager would raise.

In comes a function with stand-ins; out goes the stand-in of its result. A rule for one more operation goes to `shapes`
or beside it; everything without a rule asks torch's meta kernels.
"""

"""Sizes, strides, dtypes and devices of results, found without running a kernel; and whether eager would raise.

In comes a function with stand-ins; out goes the stand-in of its result.

To add: a rule for an operation goes to `shapes` or the module of its kind beside it; what has no rule asks torch's
meta kernels. Where eager raises and these do not, `trial_runs` finds out, and `misfits` for sizes that vary; where
values can make eager raise, `data_errors` knows.
"""

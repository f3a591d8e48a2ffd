"""Sizes, strides, dtypes and devices of results, found without running a kernel; and whether eager would raise.

In comes a function with stand-ins; out goes the stand-in of its result. The ATen tracer is asked (`outcomes`), once per
kind of call (`kinds`): what capture tells the program is what the graph's trace will say.

To add: `rules` are for functions whose metadata the tracer cannot tell. Where eager raises and metadata does not,
`trial_runs` finds out, and `size_checks` for sizes that vary; where values can make eager raise, `data_errors` knows.
"""

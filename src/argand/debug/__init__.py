"""Tools for whoever looks for a fault, or for time: they listen to events, observe programs, and run them again.

* `benchmark`: `argand bench`.
* `commands`: those of `argand` that look for faults.
* `doctor`: which stage is to blame.
* `frame_records`: a frame that could not be captured, to be captured elsewhere.
* `minify`: the smallest graph that fails, which `repro` writes.
* `trial`: what `doctor`, `minify` and others share: something is run in isolation, and compared with eager.

Beside them: logs and pictures of events (`logs`, `messages`, `directory`, `times`), whether results are right
(`accuracy`, `numerics`, `audit`), and the place where somebody can stand between a program and its compiled functions
(`observe`).
"""

"""`argand doctor script.py`: finds which stage of the compiler, and which operation in it, is to blame.

In: a script. Out: a `Verdict` (one paragraph: what, which stage, which operation, the user's line) and a file that
fails in the same way by itself.

* `child`: runs the script in a forked child, eagerly or compiled in one of several ways; keeps what compiled functions
  return (`records`) and what they can see (`visible`).
* `procedure`: which runs are made, and what follows from their differences.
* `dissect`, `stages`: in a child, the graph that fails is made small, and each stage's result is interpreted.
* `shrink`: faults of capture and guards have no failing graph: the script itself is made small.
* `healthy`: a script that is right: is it slow, does it leak, does it recompile too often?
* `torchs`: scripts whose torch.compile is torch's own.
"""

"""`argand doctor script.py`: finds which stage of the compiler, and which operation in it, is to blame.

In: a script. Out: a `Verdict` (one paragraph: what, which stage, which operation, the user's line) and a file that
fails in the same way by itself.

* `child`: runs the script in a forked child, eagerly or compiled in one of several ways; keeps what compiled functions
  return (`records`) and what they can see (`trial.scope`).
* `procedure`: which runs are made (`examination`, `repetition`), and what follows from their `differences`.
* `dissection`, `stages`, `variants`: in a child, the graph that fails is made small, and each stage's result is
  interpreted.
* `script_search`: faults of capture and guards have no failing graph: the script itself is made small.
* `flakiness`: a fault that some runs do not show.
* `health`: a script that is right: is it slow, does it leak, does it recompile too often?
* `torch_compile`: scripts whose torch.compile is torch's own.
* `verdict`, `reproduction`, `program`: what is said and written at the end, and what that file calls.
"""

"""From a frame that the hook brings to an answer for it, and what is said about it.

In comes a `FrameInfo`; out goes an entry for the code cache, or the decision to run the frame eagerly. `frame` is the
way through: it makes the state, runs the interpreter, restarts it at breaks, and has `output` write the code. Messages,
`explain`, recompile reasons, `set_stance` and `fullgraph` are here. New kinds of settings of a compile go to `region`.
"""

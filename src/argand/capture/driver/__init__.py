"""From a frame that the hook brings to an answer for it, and what is said about it.

In comes a `FrameInfo`; out goes an entry for the code cache, or the decision to run the frame eagerly. `frame` is the
way through: it makes the state, runs the interpreter, restarts it at breaks, and has `output` write the code.

To add: a setting of a compile is a field of `region.Region`; a message about a capture that failed goes to `failures`,
a reason for compiling again to `recompiles`, a sum or a table of what was captured to `explain`.
"""

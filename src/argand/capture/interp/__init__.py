"""The interpreter: the dispatch loop, the opcodes, and the state of one capture.

In comes a code object with its arguments and the sources of these; out goes a `RootExit`: how the root frame ended, or
at which instruction the graph ends. Opcodes call `objects` for what Python's protocols say, and `state` loads what
comes from outside. Lower rooms see `Interpreter` and `CaptureState` as `facts.interfaces` says.

To add: an opcode of a new Python is a function in the `opcodes_*` module of its kind, registered by `optable.opcode`
with the versions that have it, or a row of `optable.UNSUPPORTED` with the reason; `bytecode.opcodes` knows its
argument.
"""

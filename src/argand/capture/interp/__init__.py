"""The interpreter: frames, the opcodes, names, and the state of one capture.

In comes a code object with its arguments and the sources of these; opcodes call `objects` for what Python's protocols
say, and `state` loads what comes from outside. An opcode of a new Python is a row in one of the `opcodes_*` modules.
"""

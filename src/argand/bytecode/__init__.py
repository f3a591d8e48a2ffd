"""What CPython bytecode is, per version (3.11, 3.12, 3.13): the only folder that knows.

In: code objects, or lists of `Instruction` that another stage made or changed.
Out: lists of `Instruction` (decode), code objects (encode), and facts about instructions (stack depth, liveness).

    opcodes.py      per-version tables: which opcodes exist, what their argument means, how many cache units follow
    instruction.py  `Instruction`, `ExceptionHandler`: one decoded instruction, its argument already resolved
    decode.py       code object -> list of instructions
    encode.py       list of instructions -> code object (indices, EXTENDED_ARG, jumps, tables, stack size)
    tables.py       the packed exception table and line table formats
    flow.py         successors, reachability, cloning, the function prologue
    stack.py        stack effect of an instruction, stack depth at each instruction
    liveness.py     which local names may still be read from an instruction on
    cells.py        which slots of cells hold something else for a while (comprehensions on 3.12 and later)
    assemble.py     `Assembler`: builds new instruction lists that are right on every version
    resume.py       continuation functions of graph breaks, transformed frame code
    format.py       listings

Two rules hold everywhere. Instructions are compared by identity and form a graph through `target` and `handler`: copy
them with `flow.clone_instructions` before changing a decoded list that others share. And `argval` is the truth, `arg`
only a hint: `encode` finds indices from `argval` and takes nothing but flag bits from `arg` where both exist.
"""

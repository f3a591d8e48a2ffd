"""From an ATen program to a loaded callable.

What comes in: an `AtenProgram` of forward, backward or inference. What goes out: a function of the list of its inputs.
`graph_key` says which programs compute the same, `memo` holds what this process compiled, `stored_programs` what
earlier processes did, `preparation` is what happens to traces before, and `generation` runs the compiler's stages. To
add something that compiled code depends on: `graph_key`, where it is part of the program, else
`stored_programs.environment`.

Backwards are compiled late, and for whichever results get a gradient: `stored_backward` tells later processes of one,
`backends.stored_functions` has it there, `backends.late_backward` compiles there what the first one was not asked for.
"""

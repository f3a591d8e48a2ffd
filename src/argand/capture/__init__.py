"""Frame → graph: interprets a function's bytecode on real objects and records what torch does.

In: a frame that the hook offers (code, arguments, globals, closure) and the region's settings.
Out: an `fx.GraphModule` for the backend, the guards under which it holds, and the code that runs in the frame's place.

Twelve rooms; each imports only from those below it (`make lint`), and its docstring says what comes in and goes out:

    driver           from a frame to an answer for it; messages, explain, recompile reasons
    output           from a finished interpretation to the code that stands in for the frame
    interp           the dispatch loop, opcodes, names, the state of one capture
    natives          handlers of builtins and of the standard library's C code
    arrays           numpy arrays that a graph computes
    torch_functions  calls into torch: recorded, answered, interpreted, captured with subgraphs
    objects          Python's protocols on any object: attributes, calls, operators, iteration, classes, generators
    record           the graph being recorded, its constants and its guards
    sizes            sizes and numbers that vary, or that only the running program knows
    metadata         sizes, strides, dtypes and devices of results; whether eager would raise
    world            objects from before the frame: what stands for them, what native code may read, what is held back
    facts            sources, kinds of values, types, names
"""

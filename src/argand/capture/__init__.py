"""Frame → graph: interprets a function's bytecode on real objects and records what torch does.

In: a frame that the hook offers (code, arguments, globals, closure) and the region's settings.
Out: an `fx.GraphModule` for the backend, the guards under which it holds, and the code that runs in the frame's place.

    interpreter.py, frames.py, opcodes*.py      the dispatch loop, frames, one handler per opcode
    calls.py, binding.py, classes.py            what a call does: inlined, taken apart, native by permission, or a break
    attributes.py, attribute_writes.py, names.py, operators.py, iteration.py, text.py
                                                Python's own protocols, native only where nothing else takes part
    generators.py, raising.py, matching.py      generators, exceptions, match statements
    natives*.py, polyfills.py                   which native code is known, and how it is run
    access.py, protocol.py                      what the interpreter asks of the state
    state.py, sources.py, guards.py, shadows.py objects that existed before the frame, and what must hold of them
    tensors.py, torch_*.py, modules.py          tensors as stand-ins, calls into torch
    frame.py, transform.py, emit.py, reconstruct.py, effects.py
                                                the driver, and the code that it makes
"""

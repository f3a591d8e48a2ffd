"""From a finished interpretation to the code that stands in for the frame.

In comes what the interpreter left: a graph, values, effects that were held back. Out goes a code object that calls the
graph, replays the effects, rebuilds the values and goes on in a resume function. `transform` is the way through.

To add: a kind of value that captured code may return or store is a function and a row of `local_objects`, with what
runs in the transformed code in `rebuild`; a kind of effect is a method of `effects.Replay`.
"""

"""From a finished interpretation to the code that stands in for the frame.

In comes what the interpreter left: a graph, values, effects that were held back. Out goes a code object that calls the
graph, replays the effects, rebuilds the values and goes on in a resume function. Who adds a kind of value that captured
code may return says in `reconstruct` how it is rebuilt.
"""

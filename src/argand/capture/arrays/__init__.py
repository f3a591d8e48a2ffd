"""numpy arrays that a graph computes.

In comes a call of numpy on a `Traced` array, or on a tensor; out goes another one, and torch calls in the graph that
compute its values.

To add: a function of numpy that `torch._numpy` computes as numpy does is a row of `array_tables`; what must be checked
of its arguments goes to `array_arguments`. One that numpy itself is to compute in the graph is a name in `ITSELF`.
"""

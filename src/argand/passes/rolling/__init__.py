"""Loops over time steps that Python unrolled: `windows` finds them, `rewriting` puts one node in their place.

In: an `AtenProgram` of inference as it was traced, sizes known. A loop is at least `windows.LEAST` runs of nodes that
do the same to the results of the run before, to slices `x[:, t]` whose numbers advance evenly, and to what is the same
for all. What its body becomes is decided above (`backends.programs.rolling`).
"""

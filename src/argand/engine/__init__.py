"""Compiled autograd: the backward that the autograd engine runs, recorded once per structure of its graph and compiled.

In: a call of `backward()` outside of captured code. `structure` reads the nodes that the engine would run, `recording`
listens while it runs them for the first time, `entries` compiles what was recorded, `replay` runs that in place of the
nodes, `backward_calls` says for which calls. `reducers` knows what DistributedDataParallel reduces, `buckets` makes
that a part of the graph. Out: the gradients where the engine puts them. docs/compiled-autograd.md.
"""

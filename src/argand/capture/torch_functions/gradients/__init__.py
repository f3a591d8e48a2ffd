"""Gradients that captured code takes of what is in its graph: `torch.autograd.grad` and `backward()`.

In: calls of these. Out: nodes of the graph that give the gradients (`hops`), and `.grad` of leaves, written when the
graph ends. `engine_runs` runs the graph so far on stand-ins, to be told what the engine does.
"""

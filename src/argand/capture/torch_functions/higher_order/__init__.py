"""Functions of torch's that take functions: each is a node whose bodies are graphs of their own (`subgraphs`).

`transforms` has checkpoint and torch.func, `autograd_functions` has autograd.Function. Nothing else of calls into torch
imports this room.
"""

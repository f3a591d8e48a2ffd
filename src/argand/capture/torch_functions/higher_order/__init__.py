"""Functions of torch's that take functions: each is a node whose bodies are graphs of their own (`subgraphs`).

`checkpoints` has checkpoint, `transforms` torch.func, `autograd_functions` autograd.Function. Of calls into torch,
`gradients` alone imports this room.
"""

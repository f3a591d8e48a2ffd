"""What is done with calls into torch: recorded, answered, interpreted, captured with subgraphs, or a graph break.

In comes a function of torch's with its arguments; out goes what the program gets. A function of torch's that needs more
than a node is a handler in `torch_tables` or in the module of its kind, registered by `torch_calls.handler`; one of
tensors by `special_calls.special`.
"""

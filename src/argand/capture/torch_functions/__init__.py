"""What is done with calls into torch: recorded, answered, interpreted, captured with subgraphs, or a graph break.

In comes a function of torch's with its arguments; out goes what the program gets. What has no handler becomes a node
of the graph (`record.tensors.GraphBuilder.call`), which most functions are.

To add: a function of torch's that needs more than a node is a handler, registered by `torch_calls.handler` in the
module of its kind: contexts and modes, functions of functions (the room `higher_order`, and `hops`, which their nodes
call), methods of tensors (`tensor_methods`), all others `torch_tables`. A Python function that is to be interpreted in
torch's place is in `torch_polyfills`. A new module of handlers is named in `interp.handlers`.
"""

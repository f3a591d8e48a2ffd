"""The graph being recorded, its constants and its guards.

In comes a call of torch's on stand-ins; `tensors.GraphBuilder` puts a node into the graph of the innermost scope and
gives back the stand-in of the result. Guards come from everywhere, in the order in which they were needed
(`guards.GuardSet`), and go to the guard tree of the C core.

To add: a kind of guard is a check in `_core` with a row of `guards.LABELS`; an attribute of tensors that programs read
or write goes to `tensor_attributes`.
"""

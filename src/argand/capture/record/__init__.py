"""The graph being recorded, its constants and its guards.

In comes a call of torch's on stand-ins; `tensors.GraphBuilder` puts a node into the graph of the innermost scope and
gives back the stand-in of the result.
"""

"""Graphs that are compiled in parts. In: a captured graph and a function that compiles one. Out: a callable that runs
the parts.

* `choice`: which graphs are.
* `cuts`: under DistributedDataParallel, where its `buckets` end; `contest`: whether that is faster.
* `around_checkpoints`: beside checkpoints that stay torch's own.
* `parts`: one of them, compiled for what arrives at it.
"""

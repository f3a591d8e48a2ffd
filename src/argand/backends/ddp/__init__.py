"""Graphs of a module under DistributedDataParallel. In: a captured graph and a function that compiles one. Out: a
callable that runs it in parts (`cuts`), each compiled for what arrives at it (`parts`)."""

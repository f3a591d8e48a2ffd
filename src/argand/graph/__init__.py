"""Graphs, what their nodes carry, and what every stage needs of torch.

* `sizes`: expressions over symbols, and finding them.
* `operators`: what is known of operators that are no plain functions of torch, argand's own among them.
* `nodes`: the ATen program, metadata of nodes, graphs as text.
* `metadata`: what an operation returns.

Beside them lie `compat`, the one file with private or version-dependent use of torch, and what belongs to a thread or a
process while it compiles (`thread_state`, `time_limit`, `checkpoint_regions`).
"""

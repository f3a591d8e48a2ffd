"""From a torch-level graph to an ATen program, of its forward (`inference`) or with its backward (`joint`).

`trace` has the entries; `dynamic` and `dynamic_joint` trace at several sizes and make one program of it.
"""

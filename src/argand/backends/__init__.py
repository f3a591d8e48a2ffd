"""Backends: a torch-level `fx.GraphModule` and example inputs go in, a callable for the same arguments comes out.

`registry` finds them by name; `eager` and `aot_eager` are for telling which stage is at fault; `native` compiles;
`interop` is the one place that touches torch.compile.
"""

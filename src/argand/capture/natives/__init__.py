"""Handlers of native functions and methods: builtins and the standard library's C code.

In comes a call of a C function; out goes its result, or a graph break. A builtin is added in the module of its kind,
registered with `native_handlers.function` or `.method`; whatever is not registered breaks the graph.
"""

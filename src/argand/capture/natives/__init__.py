"""Handlers of native functions and methods: builtins and the standard library's C code.

In comes a call of a C function with its arguments; out goes its result, or a graph break. A handler lets nothing
escape that native code would read (`Interpreter.native` and its kin), and runs no code of the program unseen.

To add: a builtin or a function of the standard library is entered in the module of its kind, by `native_handlers`: as
`pure` where it only computes on its arguments, with a handler of its own where it calls back, stores or reads more.
What is not entered breaks the graph. A new module of handlers is named in `interp.handlers`.
"""

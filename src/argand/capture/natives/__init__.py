"""Handlers of native functions and methods: builtins and the standard library's C code.

In comes a call of a C function with its arguments; out goes its result, or a graph break. A handler lets nothing
escape that native code would read (`Interpreter.native` and its kin), and runs no code of the program unseen.

To add: a builtin or a function of the standard library is a row (`rows.Native`) in the table of its kind's module: what
becomes of its arguments, whether it looks into them, or the operation of the interpreter that it is; `pure` in the
row's place says that it only computes. A handler of its own is for what no row can say. What is not entered breaks the
graph. A new module of handlers is named in `interp.handlers`.
"""

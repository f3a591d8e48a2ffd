"""Python's protocols on any object: attributes, calls, operators, iteration, hashing, texts, classes, generators.

In comes an operation on objects, of the program or of C code; out goes its result: by native code where nothing of the
program's would run, else interpreted. Which native functions are known is entered in `native_handlers`.
"""

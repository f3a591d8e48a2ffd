"""Python's protocols on any object: attributes, calls, operators, iteration, hashing, texts, classes, generators.

In comes an operation on objects, of the program or of C code; out goes its result: by native code where nothing of the
program's would run, else interpreted. A module uses those below it, and asks the interpreter for what stands above
(`interp.call`, `interp.getattr`, `interp.truth`, ...). From below: `instances` (an object's own namespace),
`descriptors`, `keys` and `text`, `generators`, `attributes` and `iteration`, `operators`, `names`; on top the room of
calls, `call_protocol`: `native_handlers` (the tables of C functions and methods that are known), `classes`, `calls`.

To add: a special method goes to the module of its protocol, looked up by `descriptors.lookup_special`; a function that
is written in Python instead, and interpreted, to `polyfills`. Entries of `native_handlers` are made in `natives`.
"""

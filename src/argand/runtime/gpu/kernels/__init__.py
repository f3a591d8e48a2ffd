"""Kernels: Triton source text and specs go in, callables that launch come out.

`load` is the way in; it asks the disk cache (`entries`), which compiles what it lacks (`triton_compile`), and makes
callables of machine code (`launch`), or has Triton do that on AMD's GPUs (`hip`) and its interpreter on CPU tensors
(`interpreter`). `variants` and `copies` choose between kernels of one text by the tensors of a call.
"""

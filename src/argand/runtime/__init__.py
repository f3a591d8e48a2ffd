"""Runtime: from source text to loaded, callable kernels.

In: C++ text (`codegen.cpp.CppSource`) and host module text. Out: Python callables. `toolchain` finds and runs the
compiler, `cache` keeps its products on disk, `launch` makes callables of symbol addresses, `arena` owns the memory of
temporaries, `host` executes host module text.
"""

"""The C core. In: a thread's frames and plain Python objects. Out: transformed code that runs in the frames' place.

The extension `argand._core._C` (its interface with docstrings is `_C.pyi`) holds four things that must be fast:

* the PEP 523 frame hook with its per-code cache of entries (`run_with_callback`, `Region`, `Entry`);
* guard trees, which decide in C whether an entry fits a frame (`GuardTree`);
* tensor metadata through the DLPack C exchange API (`tensor_guard_args`, `tensor_info`);
* the kernel launcher (`Kernel`).

Its C files are in rooms: `hook/` (frames, regions, what is watched), `guards/` (trees: parsing, walking, replaying),
`tensors/` (their metadata and layout), `device/` (launchers); here are the module, the code cache and equality.

It includes no torch header, imports no torch, and is at the bottom of the layers with `events`, `config` and `errors`.
`hook/hook_compat.h` is the only file that reads CPython's internal headers.
"""

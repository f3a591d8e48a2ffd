"""The program's objects as a capture sees them: which are from outside, what stands for them, what is held back.

In comes an object that existed before the frame; out goes the copy that captured code works on, the guards of what was
read, the list of writes that wait.

To add: what native code may read of an outer object of a C class is a row of `native_reads`; a container that programs
change is copied in `shadows`, and what is written back of it is found in `pending_effects`.
"""

"""The program's objects as a capture sees them: which are from outside, what stands for them, what is held back.

In comes an object that existed before the frame; out goes the copy that captured code works on, the guards of what was
read, the list of writes that wait. What native code may read of an outer object is said in `native_reads`.
"""

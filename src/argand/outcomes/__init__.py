"""What capture made of a code object, so that a later process installs it without capturing.

What comes in: a finished capture, as its guards, its transformed code and the callables that its code calls. What goes
out, in a later process: an entry of the code cache, or the reason why there is none.

* `fingerprints`: digests of functions, classes and files, by which a later process tells that they are the same.
* `references`: objects as text: by value, or by where they live; `resolver` finds them again.
* `operators`: digests of operators of libraries; `reads`: what their Python code computes from.
* `dtensor_layouts`: meshes, placements and layouts of DTensors.
* `guard_log`: the guard tree as a list of the calls that made it.
* `code_objects`: code objects with the objects among their constants.
* `records`: one outcome as plain data, its validation and its installation; `store` keeps records in the disk cache.

Nothing of a later process's capture is imported here. What cannot be described exactly is not stored: `Unstorable`.
"""

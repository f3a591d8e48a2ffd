"""Layers that do the same are lowered and scheduled once: five of them are, and the steps of the rest are theirs with
other names.

In comes an `AtenProgram` that the passes are through with, and out the schedule that the whole of it would have had.
`layers` finds the runs of nodes, each of which does to its parameters and to what the one before left what that one
did; `cutting` makes the program without most of them; `forms` says what steps do and to what; `repeating` compares the
steps of the layers that are left and puts copies where layers are missing. Whatever is not as in the layer before, a
parameter of another size or a kernel that comes later, leads to `Unlike`: then the whole program is lowered.

Why that is right: the steps of three layers in a row are equal but for names, each name is the same in all or moves on
by one layer, and so do those that leave the program. So a copy between them reads what the layer before it wrote, and
computes what its nodes say.
"""

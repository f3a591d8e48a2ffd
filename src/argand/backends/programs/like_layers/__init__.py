"""Layers that do the same are traced, differentiated, lowered and scheduled once: five of them are, and what the rest
becomes is that with other names.

A captured graph comes first: `five_layers` makes one with five of its layers, which is traced and, for training, cut
in two; `stretching` makes the ATen graph of all of that of five, by the rule that its calls follow from layer to
layer, and `whole_forward` and `halves` what belongs to it: inputs, what is kept for the backward, gradients.

Then, for each ATen graph, in comes an `AtenProgram` that the passes are through with, and out the schedule that the
whole of it would have had. `layers` finds the runs of nodes, each of which does to its parameters and to what the one
before left what that one did; `cutting` makes the program without most of them; `forms` says what steps do and to
what; `repeating` compares the steps of the layers that are left and puts copies where layers are missing. Whatever is
not as in the layer before, a parameter of another size or a kernel that comes later, leads to `Unlike`: then the
whole program is lowered.

Why that is right: the steps of three layers in a row are equal but for names, each name is the same in all or moves on
by one layer, and so do those that leave the program. So a copy between them reads what the layer before it wrote, and
computes what its nodes say.
"""

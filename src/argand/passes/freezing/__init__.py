"""Programs of which some inputs are taken for constants: what is computed of these alone is computed once.

In: an `AtenProgram` of inference that the other passes have rewritten, and which of its placeholders are constant. What
each does: `batch_norms` makes normalisations part of the weights before them, `packing` lays weights out as oneDNN
wants them, and lets it compute what follows; `quantizing` has weights of products as integers of 8 bits; `followers`
says what may be computed with a product; `constant_split` cuts a program in two, what is computed once and the rest.
"""

"""What the native stages hand to each other: the loop program (`loops`) and its kernels (`kernel`). Data, no passes.

Lowering makes a `loops.Program`, the scheduler turns it into a `kernel.Schedule`, code generation prints that.
`interpret` runs loops slowly but exactly: it says what they mean.
"""

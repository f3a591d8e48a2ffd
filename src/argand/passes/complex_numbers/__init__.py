"""Complex numbers as pairs of real ones: what arithmetic on them is, and the pass that rewrites programs."""

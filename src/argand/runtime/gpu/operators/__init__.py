"""Operators beside the schedule's kernels: matrix products by cuBLASLt or as others, `flex_attention`."""

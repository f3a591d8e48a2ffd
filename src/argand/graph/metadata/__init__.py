"""What an operation returns: sizes, strides, dtype and device of its results, by torch's meta kernels corrected."""

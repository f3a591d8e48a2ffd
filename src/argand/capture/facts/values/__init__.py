"""What stands for values that a graph computes, or that vary from call to call: numbers, arrays, texts, tensors.

Plain data, from which the graph and its guards are written; what operations make of it is asked in `sizes`, `arrays`
and `record`.
"""

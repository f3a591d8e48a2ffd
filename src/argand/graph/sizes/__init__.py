"""Sizes and numbers that vary: expressions over symbols, the symbols of a capture, and fitting one to numbers seen.

`expr` is integer arithmetic that simplifies; `symbols` and `symbol_fits` hold what one capture knows; `fitting` finds
the expression behind numbers met at several sizes; `symbolic` is what a graph for many sizes carries.
"""

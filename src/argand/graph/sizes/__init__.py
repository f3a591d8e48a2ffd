"""Sizes and numbers that vary: expressions over symbols, conditions on them, and fitting one to numbers seen.

`expr` is integer arithmetic that simplifies, `intervals` says between which numbers its values lie; `relations` are
conditions and what follows from them; `fitting` finds the expression behind numbers met under several assignments;
`symbols` holds what one capture knows; `symbolic` is what a graph for many sizes carries.
"""

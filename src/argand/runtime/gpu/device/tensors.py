"""Tensors that host modules make on GPUs, by the cheapest way that this torch has."""

from argand.graph.compat import gpu_allocator, view_maker

__all__ = ["gpu_allocator", "view_maker"]

"""Operators in graphs that are no plain functions of torch: argand's own, and what is known of some of torch's."""

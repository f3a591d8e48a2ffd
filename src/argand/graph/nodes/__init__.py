"""Graphs and what their nodes carry: `AtenProgram`, the metadata of nodes, their devices, graphs as text."""

"""Calls into torch.distributed. In: calls of collectives, and of functions that make and lay out DTensors. Out: nodes.

`collectives` records communication, and answers what is asked of process groups; `dtensor_calls` does the same for
DTensors and meshes.
"""

"""CUDA graphs: what a call gives the device to do is recorded (`recorder`), and replayed with new inputs (`graphs`)."""

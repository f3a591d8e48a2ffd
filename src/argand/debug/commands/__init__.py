"""Commands of `argand` that look for faults. What they run is loaded when they are called: `--help` loads no torch."""

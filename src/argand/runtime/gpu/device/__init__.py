"""The GPU itself: what kind it is and why there may be none, the driver that loads machine code, memory, time."""

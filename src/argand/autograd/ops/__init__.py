"""How single operations are traced, in terms of `recording.recorder`: views, writes, what has rules of its own."""

"""Frames that could not be captured, as files: `record` writes what a frame could see, `replay` captures it again."""

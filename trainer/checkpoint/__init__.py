"""The contents of a checkpoint, and how it is stored."""

"""What is tried on a few examples before the first step."""

"""The host loop, and what happens between its graph calls."""

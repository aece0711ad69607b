"""Trials of losses, layers and metrics on a few examples."""

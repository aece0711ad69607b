"""Callbacks that come in the box."""

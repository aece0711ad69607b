"""Loggers: callbacks that record what a run logs."""

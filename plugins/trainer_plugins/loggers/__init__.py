"""Loggers: callbacks that record the logs of a run."""

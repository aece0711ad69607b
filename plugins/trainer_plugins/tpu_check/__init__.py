"""Compiles a run's programs for a TPU that is not there; see docs/check.md."""

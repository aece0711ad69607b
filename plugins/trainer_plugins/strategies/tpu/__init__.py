"""A TPU, and the compiler for one that is not there; see docs/check.md."""

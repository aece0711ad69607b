"""A TPU, or its compiler alone; see docs/scale/tpu_check.md."""

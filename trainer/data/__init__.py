"""Data addressed by step: global batches, cut into batches for replicas."""

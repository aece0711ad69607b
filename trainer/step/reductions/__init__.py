"""Sums and gathers over replicas and steps."""

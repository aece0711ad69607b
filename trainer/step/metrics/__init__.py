"""Metrics that are exact under every strategy."""

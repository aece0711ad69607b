"""Keras metrics, exact under every strategy."""

"""Cluster specs: which tasks there are, and which one this is."""

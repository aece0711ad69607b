"""Clusters: which processes there are, and which one this is."""

"""Reads gin: files, names, errors, unused bindings."""

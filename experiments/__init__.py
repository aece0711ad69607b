"""Gin files, and the models and data that they configure."""

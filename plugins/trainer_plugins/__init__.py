"""Plugins that come in the box."""

"""The launcher: starts the tasks of a cluster, and restarts them."""

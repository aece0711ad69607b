"""Starts a cluster of processes on this machine and watches over it."""

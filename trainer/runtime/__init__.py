"""Files, locks and the end of a process."""

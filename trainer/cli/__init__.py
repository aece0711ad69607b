"""The command line: flags, gin files, the run directory, exit codes."""

"""Output of the launcher.

`trainer.runtime.standard_streams` keeps it from failing.
"""

import sys


def echo(output: bytes) -> None:
    """Shows the output of a task; as bytes, since it need not be valid text."""
    sys.stdout.flush()
    sys.stdout.buffer.write(output)
    sys.stdout.flush()


def log(sentence: str) -> None:
    """Writes a line to stderr."""
    sys.stderr.write(f"{sentence}\n")
    sys.stderr.flush()

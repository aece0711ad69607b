"""`python -m trainer`."""

import logging
import os
import sys

from trainer.cli import main as command_line
from trainer.errors import EXIT_START_AGAIN


def main() -> None:
    """Runs the command line and ends the process with its exit code.

    After a failure the peers may be gone, and TensorFlow's own exit handlers
    would wait for them: everything is flushed and the process just stops.
    """
    code = command_line.main()
    if code in (command_line.EXIT_FAILED, EXIT_START_AGAIN):
        sys.stdout.flush()
        sys.stderr.flush()
        logging.shutdown()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    main()

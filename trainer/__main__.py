"""`python -m trainer`."""

import logging
import os
import sys

from trainer.cli.main import EXIT_FAILED, main
from trainer.errors import EXIT_START_AGAIN


def exit_with(code: int) -> None:
    """Ends the process.

    After a failure the peers may be gone, and TensorFlow's own exit handlers
    would wait for them: everything is flushed and the process just stops.
    """
    if code in (EXIT_FAILED, EXIT_START_AGAIN):
        sys.stdout.flush()
        sys.stderr.flush()
        logging.shutdown()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    exit_with(main())

"""`python -m trainer.runs`."""

import sys

from trainer.runs.main import main
from trainer.runtime import standard_streams

if __name__ == "__main__":
    # Before anything is opened, which would get the number of a closed stream.
    standard_streams.protect()
    sys.exit(main())

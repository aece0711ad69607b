"""`python -m trainer.new`."""

import sys

from trainer.new.main import main
from trainer.runtime import standard_streams

if __name__ == "__main__":
    # Before anything is opened, which would get the number of a closed stream.
    standard_streams.protect()
    sys.exit(main())

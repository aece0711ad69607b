"""`python -m trainer.launch`."""

import sys

from trainer.launch.main import main

if __name__ == "__main__":
    sys.exit(main())

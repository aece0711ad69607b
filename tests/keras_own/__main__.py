"""Runs one file of Keras' own tests, with options of pytest."""

import sys

from tests.keras_own.running import FILES, run

if len(sys.argv) < 2 or sys.argv[1] not in FILES:
    sys.exit(f"Name one of: {', '.join(FILES)}")
sys.exit(run(*sys.argv[1:]).returncode)

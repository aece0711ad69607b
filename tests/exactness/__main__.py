"""Writes docs/about/exactness.md: every loss, metric and optimizer of Keras.

    python -m tests.exactness [STRATEGY ...]

takes the strategies of the table if none is named, and about a quarter of an
hour for all. It ends with 1, and writes nothing, if a number is neither equal
nor explained.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

from tests.conformance import running
from tests.exactness import reference, table

ROOT = pathlib.Path(__file__).resolve().parents[2]


def measure(strategies, directory):
    """Strategy, then cell, to what was found; and what Keras cannot."""
    subprocess.run(
        [sys.executable, "-m", "tests.exactness.reference", directory],
        cwd=ROOT,
        check=True,
    )
    found = {}
    for strategy in strategies:
        results = running.run(
            strategy,
            directory,
            "--extra=tests.exactness.worker:run",
            timeout=3600,
        )
        found[strategy] = json.loads(str(results["found"]))
        print(f"{strategy}: {len(found[strategy])} cells", flush=True)
    return found, reference.failures(directory)


def main(strategies):
    with tempfile.TemporaryDirectory() as directory:
        found, not_in_keras = measure(strategies or table.STRATEGIES, directory)
    unexplained = table.unexplained(found)
    if unexplained:
        sys.exit("Neither equal nor explained:\n" + "\n".join(unexplained))
    text = table.text(found, not_in_keras)
    if strategies:
        print(text)
    else:
        table.PATH.write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])

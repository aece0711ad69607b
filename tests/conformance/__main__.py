"""Runs the suite against the strategies that are named."""

import itertools
import pathlib
import sys

try:
    import pytest
except ModuleNotFoundError:
    sys.stderr.write("error: The suite needs pytest: pip install pytest.\n")
    sys.exit(2)


def main(arguments):
    """Takes strategies, and after them options for pytest."""
    names = list(itertools.takewhile(lambda a: a[:1] != "-", arguments))
    options = arguments[len(names) :]
    chosen = [f"--conformance-strategy={name}" for name in names]
    tests = pathlib.Path(__file__).parent / "test_conformance.py"
    return pytest.main([str(tests), *chosen, *options])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Prints how far each strategy is from the reference, as Markdown.

python -m tests.conformance.table [STRATEGY ...]
"""

import sys
import tempfile

from . import compare, running
from .conftest import MORE_STRATEGIES, STRATEGIES


def main(strategies):
    names = list(compare.PROPERTIES)
    print("| strategy | " + " | ".join(names) + " |")
    print("|---" * (len(names) + 1) + "|")
    for strategy in strategies or [*STRATEGIES, *MORE_STRATEGIES]:
        with tempfile.TemporaryDirectory() as directory:
            results = running.run(strategy, directory)
        cells = [
            f"{compare.PROPERTIES[name][0](results):.1e}"
            if name != "resume"
            else ("same bytes" if compare.resumed(results) == 0 else "differs")
            for name in names
        ]
        print(f"| {strategy} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

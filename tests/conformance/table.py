"""Prints how far each strategy is from the reference, as Markdown.

python -m tests.conformance.table [STRATEGY ...]
"""

import sys
import tempfile

from tests.conformance import compare, running
from tests.conformance.conftest import MORE_STRATEGIES, STRATEGIES


def main(strategies):
    names = list(compare.PROPERTIES)
    print("| strategy | " + " | ".join(names) + " |")  # noqa: T201
    print("|---" * (len(names) + 1) + "|")  # noqa: T201
    for strategy in strategies or [*STRATEGIES, *MORE_STRATEGIES]:
        with tempfile.TemporaryDirectory() as directory:
            results = running.run(strategy, directory)
        cells = [
            f"{compare.PROPERTIES[name](results):.1e}"
            if name != "resume"
            else ("same bytes" if compare.resumed(results) == 0 else "differs")
            for name in names
        ]
        print(f"| {strategy} | " + " | ".join(cells) + " |", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])

"""The process of a contender; started by `benchmarks.turns`.

    python -m benchmarks.contenders TASK ORDERS ANSWERS

The last two are file descriptors.
"""

import importlib.util
import json
import sys

from benchmarks.contenders import find
from benchmarks.orders import Orders, Task


def main(text: str, *descriptors: str) -> None:
    """Trains when told to, or says why not."""
    task = Task(*json.loads(text))
    orders = Orders(*map(int, descriptors))
    entry = find(task.contender)
    missing = [
        package
        for package in entry.packages
        if importlib.util.find_spec(package) is None
    ]
    if missing:
        orders.refuse(f"not installed: {', '.join(missing)}")
        return
    module = importlib.import_module(f"benchmarks.contenders.{entry.module}")
    try:
        module.run(task, orders)
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        orders.refuse(f"failed: {type(error).__name__}: {lines[0]}")
        raise


if __name__ == "__main__":
    main(*sys.argv[1:])

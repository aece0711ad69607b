"""Each strategy against the bare `tf.distribute` loop of that strategy.

The MLP; two devices in one process, two worker processes, or two workers and a
parameter server.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence

from benchmarks import table
from benchmarks.orders import Task
from benchmarks.turns import take_turns

# By name: devices in each process.
STRATEGIES = {
    "default": 1,
    "mirrored": 2,
    "central_storage": 2,
    "multi_worker_mirrored": 1,
    "parameter_server": 1,
}
STEPS = 400


def measure(
    names: Sequence[str],
    *,
    rounds: int,
    steps: int | None,
    examples: int | None,
    tell: Callable[[str], None],
) -> Iterator[str]:
    """Runs each strategy, one after the other; yields the table.

    Args:
        names: which of `STRATEGIES`.
        rounds: turns of each side.
        steps: in a turn.
        examples: rows of the arrays; `None` for the model's own.
        tell: is given a line about what goes on.
    """
    rows = []
    for name in names:
        tell(f"{name}:")
        tasks = [
            Task(
                contender,
                "mlp",
                steps or STEPS,
                examples=examples,
                strategy=name,
                replicas=STRATEGIES[name],
            )
            for contender in ("trainer", "distribute")
        ]
        measured, left_out = take_turns(tasks, rounds=rounds, tell=tell)
        if left_out:
            rows.append((name, *"----", str(left_out)))
            continue
        ours, bare = measured
        ratios = table.ratios(ours, bare)
        rows.append(
            (
                name,
                f"{statistics.median(ours.speeds):.0f}",
                f"{statistics.median(bare.speeds):.0f}",
                f"{statistics.median(ratios):.2f}",
                f"{min(ratios):.2f} to {max(ratios):.2f}",
                f"{(ours.peak_bytes or 0) / (bare.peak_bytes or 1):.2f}",
            )
        )
    yield from table.as_table(
        (
            "strategy",
            "Trainer, steps/s",
            "bare, steps/s",
            "Trainer ÷ bare",
            "in the rounds",
            "memory, Trainer ÷ bare",
        ),
        rows,
    )

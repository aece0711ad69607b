"""The Trainer and its peers, in turn: one table, as Markdown.

    python -m benchmarks [--parts=speed,...] [--models=mlp,...]
        [--contenders=trainer,bare,...] [--strategies=mirrored,...]
        [--rounds=5] [--steps=N] [--examples=N]

docs/about/benchmarks.md says how to read it.
"""

import argparse
import signal
import sys
from collections.abc import Iterator, Sequence

from benchmarks import (
    against_bare,
    contenders,
    models,
    save,
    slow_worker,
    table,
)
from benchmarks.orders import Task
from benchmarks.turns import take_turns

PARTS = ("speed", "strategies", "scaling", "save", "slow_worker", "forms")


def tell(line: str) -> None:
    """Says what goes on; the table alone is on standard output."""
    print(line, file=sys.stderr, flush=True)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line; names in lists are checked."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    for name, default in (
        ("parts", PARTS),
        ("models", tuple(models.MODELS)),
        ("contenders", contenders.DEFAULT),
        ("strategies", tuple(against_bare.STRATEGIES)),
    ):
        parser.add_argument(
            f"--{name}",
            type=lambda given: tuple(filter(None, given.split(","))),
            default=default,
            help=f"default: {','.join(default)}",
        )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, help="in a turn")
    parser.add_argument("--examples", type=int, help="rows of the arrays")
    given = parser.parse_args(arguments)
    known = {"parts": PARTS, "strategies": against_bare.STRATEGIES}
    for name, valid in known.items():
        for value in getattr(given, name):
            if value not in valid:
                parser.error(f"--{name}: there is no {value!r}")
    for name in given.contenders:
        contenders.find(name)
    for name in given.models:
        models.find(name)
    if given.steps and given.steps % min(100, given.steps):
        parser.error("--steps above 100 must be a multiple of 100")
    if given.examples and given.examples % models.BATCH:
        parser.error(f"--examples must be a multiple of {models.BATCH}")
    return given


def speed(given: argparse.Namespace) -> Iterator[str]:
    """Each model, with all contenders."""
    for name in given.models:
        spec = models.find(name)
        tell(f"{name}:")
        measured, left_out = take_turns(
            [
                Task(
                    contender,
                    name,
                    given.steps or spec.steps,
                    examples=given.examples,
                )
                for contender in given.contenders
            ],
            rounds=given.rounds,
            tell=tell,
        )
        yield f"### {spec.title}"
        yield from table.of_speed(measured, left_out)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures all parts, and prints their tables."""
    given = parse(sys.argv[1:] if arguments is None else arguments)
    # As an exception, so that the contenders end and their files are removed.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    common = {
        "rounds": given.rounds,
        "steps": given.steps,
        "examples": given.examples,
        "tell": tell,
    }
    lines = [table.machine()]
    if "speed" in given.parts:
        lines += speed(given)
    if "strategies" in given.parts:
        lines += ["### Strategies"]
        lines += against_bare.strategies(given.strategies, **common)
    if "scaling" in given.parts:
        lines += ["### Scaling", *against_bare.scaling(**common)]
    if "save" in given.parts:
        lines += ["### Saves", *save.measure(rounds=given.rounds)]
    if "slow_worker" in given.parts:
        del common["examples"]
        lines += ["### A slow worker", *slow_worker.measure(**common)]
    if "forms" in given.parts:
        # Trains in this process, which else needs no TensorFlow.
        from benchmarks import forms

        lines += ["### Forms", *forms.measure(rounds=given.rounds, tell=tell)]
    print("\n".join(lines))


if __name__ == "__main__":
    main()

"""The Trainer and its peers, in turn: one table, as Markdown, JSON and PNG.

    python -m benchmarks [--parts=speed,...] [--models=mlp,...]
        [--contenders=trainer,bare,...] [--strategies=mirrored,...]
        [--rounds=5] [--steps=N] [--examples=N] [--limit=SECONDS] [--out=DIR]
        [--add] [--note=TEXT] [--docs]

docs/performance.md says how to read it.
"""

import argparse
import datetime
import json
import pathlib
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import (
    communication,
    contenders,
    goals,
    models,
    plot,
    scaling,
    startup,
    strategies,
    table,
)
from benchmarks.orders import Task
from benchmarks.process import ROOT
from benchmarks.turns import TURN_SECONDS, take_turns

PARTS = ("speed", "strategies", "scaling", "communication", "startup")
DOCS = ROOT / "docs" / "performance.md"
_BEGIN = "<!-- Written by `python -m benchmarks --docs`: begin -->"
_END = "<!-- Written by `python -m benchmarks --docs`: end -->"


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line; names in lists are checked."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Runs the Trainer and its peers in turn.",
    )
    lists = {
        "parts": (PARTS, "what to run"),
        "models": (tuple(models.MODELS), "which models, for speed"),
        "contenders": (contenders.DEFAULT, "which, for speed; first ours"),
        "strategies": (tuple(strategies.STRATEGIES), "which strategies"),
    }
    for name, (default, text) in lists.items():
        parser.add_argument(
            f"--{name}",
            type=lambda given: tuple(filter(None, given.split(","))),
            default=default,
            help=f"{text}; default: {','.join(default)}",
        )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, help="in a turn")
    parser.add_argument("--examples", type=int, help="rows of the arrays")
    parser.add_argument(
        "--limit",
        type=float,
        default=TURN_SECONDS,
        help="seconds; who takes longer for a turn is left out",
    )
    parser.add_argument("--out", type=pathlib.Path, default="benchmarks_out")
    parser.add_argument(
        "--add",
        action="store_true",
        help="keep what an earlier run has written to --out, but for what "
        "this one measures again",
    )
    parser.add_argument("--note", help="a sentence about this run")
    parser.add_argument(
        "--docs",
        action="store_true",
        help="also put the tables into docs/performance.md",
    )
    asked = parser.parse_args(arguments)
    for name in ("parts", "strategies"):
        for value in getattr(asked, name):
            if value not in lists[name][0]:
                parser.error(f"--{name}: there is no {value!r}")
    for name in asked.contenders:
        contenders.find(name)
    for name in asked.models:
        models.find(name)
    for name in ("rounds", "steps", "examples"):
        if getattr(asked, name) is not None and getattr(asked, name) < 1:
            parser.error(f"--{name} must be at least 1")
    if asked.steps and asked.steps % min(100, asked.steps):
        parser.error("--steps above 100 must be a multiple of 100")
    if asked.examples and asked.examples % models.BATCH:
        parser.error(f"--examples must be a multiple of {models.BATCH}")
    return asked


def speed(asked: argparse.Namespace) -> dict[str, Any]:
    """Each model, with all contenders."""
    found: dict[str, Any] = {}
    for name in asked.models:
        spec = models.find(name)
        _tell(f"{name}:")
        measured, left_out = take_turns(
            [
                Task(
                    contender,
                    name,
                    asked.steps or spec.steps,
                    examples=asked.examples,
                )
                for contender in asked.contenders
            ],
            rounds=asked.rounds,
            tell=_tell,
            limit=asked.limit,
        )
        found[name] = {
            "title": spec.title,
            "rows": table.rows(measured),
            "left_out": left_out,
        }
    return found


def run(asked: argparse.Namespace, command: str) -> dict[str, Any]:
    """All parts that are asked for, as JSON values."""
    common = {
        "rounds": asked.rounds,
        "steps": asked.steps,
        "examples": asked.examples,
        "tell": _tell,
    }
    report: dict[str, Any] = {
        "command": command,
        "date": datetime.date.today().isoformat(),
        "note": asked.note,
        "machine": table.machine(),
        "speed": speed(asked) if "speed" in asked.parts else {},
    }
    if "strategies" in asked.parts:
        report["strategies"] = strategies.measure(asked.strategies, **common)
    if "scaling" in asked.parts:
        report["scaling"] = scaling.measure(list(scaling.points()), **common)
    if "communication" in asked.parts:
        _tell("communication:")
        report["communication"] = communication.measure(
            names=list(asked.models), tell=_tell
        )
    if "startup" in asked.parts:
        _tell("startup:")
        report["startup"] = startup.measure(rounds=asked.rounds, tell=_tell)
    return report


def check_machine(earlier: Mapping[str, Any], machine: object) -> None:
    """Checks that the numbers of an earlier run are of this machine.

    Raises:
        SystemExit: they are of another one, or of other versions.
    """
    if earlier["machine"] != machine:
        raise SystemExit(
            "--add: the earlier run was made on another machine or with other "
            "versions, so its numbers do not belong in one table. Choose "
            "another --out."
        )


def merged(
    earlier: Mapping[str, Any], report: Mapping[str, Any]
) -> dict[str, Any]:
    """Two reports as one, of which the second counts where both are there.

    Raises:
        SystemExit: see `check_machine`.
    """
    check_machine(earlier, report["machine"])
    speed = {**earlier["speed"], **report["speed"]}
    notes = filter(None, (earlier.get("note"), report.get("note")))
    return {
        **earlier,
        **report,
        "command": f"{earlier['command']}`, `{report['command']}",
        "note": " ".join(notes),
        "speed": {
            name: speed[name]
            for name in (*models.MODELS, *speed)
            if name in speed
        },
    }


def into_docs(text: str, path: pathlib.Path = DOCS) -> None:
    """Replaces what is between the two marks of the page.

    Raises:
        SystemExit: the page does not have them.
    """
    page = path.read_text()
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise SystemExit(f"{path.name} has no marks for the tables.")
    path.write_text(f"{before}{begin}\n\n{text}\n{end}{after}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs, and writes table.md, table.json and speed.png."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    # As an exception, so that the contenders end and their files are removed.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    asked = parse(given)
    # Without where the files go and what only describes the run.
    described = {asked.note, str(asked.out)}
    described |= {"--note", "--out", "--docs", "--add"}
    shown = [
        one
        for one in given
        if one not in described and not one.startswith(("--out=", "--note="))
    ]
    command = shlex.join(["python", "-m", "benchmarks", *shown])
    path = asked.out / "table.json"
    earlier = (
        json.loads(path.read_text()) if asked.add and path.exists() else None
    )
    if earlier is not None:
        # Before hours of measuring.
        check_machine(earlier, table.machine())
    report = run(asked, command)
    if earlier is not None:
        report = merged(earlier, report)
    report["goals"] = goals.part(report)
    text = table.markdown(report)
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "table.md").write_text(text)
    path.write_text(json.dumps(report, indent=2) + "\n")
    _tell(plot.write(report, asked.out / "speed.png"))
    if asked.docs:
        into_docs(text)
    print(text)


if __name__ == "__main__":
    main()

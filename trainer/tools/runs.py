"""`python -m trainer.tools.runs`: a table of runs, and going on by name.

Run directories are only read, in any state. Nothing here imports TensorFlow.
"""

import argparse
import dataclasses
import json
import math
import os
import re
import shlex
import socket
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, NoReturn

import rich.box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trainer.cli import command
from trainer.cli.config.written import bindings_of
from trainer.errors import UserError, did_you_mean, nearest
from trainer.loop.evaluation_sets import names_in_logs
from trainer.runtime import standard_streams
from trainer.runtime.charts import require_matplotlib
from trainer.runtime.files import read
from trainer.runtime.run_lock import FILE_NAME, is_held
from trainer.tools import plot
from trainer.values.direction import direction_of

_HELP = """\
Compares runs: a table, the best first, with what differs in their
configurations. --resume continues a run with the command in its run.json.

  python -m trainer.tools.runs [DIR] [--sort_by=METRIC] [--mode=min] [--json]
  python -m trainer.tools.runs [DIR] [--sort_by=METRIC] --plot=FILE.svg [--log]
  python -m trainer.tools.runs --resume=NAME [flags of python -m trainer]
"""
_HOME = "runs"
# In a home directory or a whole file system, a search would take minutes.
_MOST_FOLDERS = 10_000
# Any of these makes a folder a run directory.
_FILES = {"run.json", "metrics.jsonl"}
# Replaces the learning rate of the optimizer.
_RATE = "Trainer.learning_rate"
_REFERENCE = re.compile(r"@([\w./]+)(?:\(\))?")


@dataclasses.dataclass(frozen=True)
class Run:
    """A run, as its directory shows it.

    Attributes:
        name: its path below the folder that was searched.
        path: its directory.
        state: the `exit_reason` in `run.json`; `"killed"` where that is still
            `"running"`, but its process is gone.
        values: by metric, as monitors name it, the steps and their values;
            `None` for one that was not finite.
        configuration: by parameter its value, as gin text.
        notes: error messages about files that cannot be read.
    """

    name: str
    path: str
    state: str
    values: dict[str, dict[int, float | None]]
    configuration: dict[str, str]
    notes: list[str]

    @property
    def step(self) -> int | None:
        """The last step that was logged."""
        return max(map(max, self.values.values()), default=None)

    def best(self, metric: str, sign: float) -> tuple[float, int] | None:
        """The smallest `sign * value`, and its first step."""
        values = self.values.get(metric, {})
        found = [
            (sign * v, step) for step, v in values.items() if v is not None
        ]
        return min(found, default=None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line.

    Args:
        arguments: without the program's name; `sys.argv[1:]` by default.

    Returns:
        The exit code: 0 for done, 2 for a user's mistake.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if given and given[0].startswith("--resume="):
            again = resumed(given[0].partition("=")[2], given[1:])
            standard_streams.say(f"resumes: {command.recorded(again)}")
            os.execv(sys.executable, command.started(again))
        _compare(given)
        standard_streams.require_output()
    except UserError as error:
        standard_streams.say(f"error: {error}")
        return 2
    return 0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}. --help lists the flags.")


def _compare(arguments: Sequence[str]) -> None:
    parser = _Parser(usage=_HELP, allow_abbrev=False)
    parser.add_argument("dir", nargs="?", default=_HOME, help="default: runs")
    parser.add_argument("--sort_by", help="default: val_loss, else loss")
    parser.add_argument("--mode", choices=("min", "max"))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", help="draw METRIC over the steps into a file")
    parser.add_argument(
        "--log", action="store_true", help="make both axes logarithmic"
    )
    given, unknown = parser.parse_known_args(arguments)
    if unknown:
        flag = unknown[0].partition("=")[0].lstrip("-")
        hint = did_you_mean(flag, [*vars(given), "resume"], prefix="--")
        raise UserError(f"Unknown argument {unknown[0]}.{hint}")
    if given.plot is not None:
        require_matplotlib("--plot")
    elif given.log:
        raise UserError("--log is for --plot, which is not given.")
    runs = [read_run(name, path) for name, path in find(given.dir).items()]
    if not runs:
        raise UserError(f"There is no run in {given.dir}.")
    metric = _metric(
        given.sort_by, {name for one in runs for name in one.values}
    )
    mode = given.mode or (direction_of(metric) if metric else "min")
    sign = 1.0 if mode == "min" else -1.0

    def order(run: Run) -> tuple[bool, bool, float, str]:
        found = run.best(metric, sign)
        # A low loss on the way to NaN recommends no configuration.
        diverged = run.state == "diverged"
        return found is None, diverged, found[0] if found else 0.0, run.name

    runs.sort(key=order)
    if given.json:
        found = [dataclasses.asdict(one) | {"step": one.step} for one in runs]
        sys.stdout.write(f"{json.dumps(found, indent=2)}\n")
    else:
        print_table(runs, metric, sign, Console())
    if given.plot is not None:
        draw(runs, metric, given.plot, log=given.log)


def _metric(given: str | None, names: set[str]) -> str:
    """The value that orders runs; empty if nothing was logged."""
    if given is None:
        preferred = ("val_loss", "loss", *sorted(names))
        return next((one for one in preferred if one in names), "")
    if given not in names:
        raise UserError(
            f"--sort_by={given}: no run has logged it. {nearest(given, names)}"
        )
    return given


def find(directory: str) -> dict[str, str]:
    """The runs in a folder, or the one that it is: their paths by name.

    Raises:
        UserError: there is no such local folder.
    """
    if not os.path.isdir(directory):
        hint = did_you_mean(directory, os.listdir())
        raise UserError(f"There is no local folder {directory}.{hint}")
    found: dict[str, str] = {}
    for number, (path, folders, files) in enumerate(os.walk(directory)):
        if number - len(found) > _MOST_FOLDERS:
            raise UserError(
                f"{directory} has more than {_MOST_FOLDERS:,} folders that are "
                "not runs. Give a folder closer to the runs."
            )
        folders.sort()
        if not _FILES.isdisjoint(files):
            folders.clear()
            found[os.path.relpath(path, directory)] = path
    return found


def read_run(name: str, path: str) -> Run:
    """Reads a run directory, in whatever state it is."""
    notes: list[str] = []
    record = _json(path, "run.json", notes)
    state = str(record.get("exit_reason", "not recorded"))
    if state == "running":
        lock, here = _json(path, FILE_NAME, notes), socket.gethostname()
        if lock.get("host", here) == here and not is_held(path):
            state = "killed"
    elif state != "done" and record.get("exit_message"):
        notes.append(str(record["exit_message"]))
    values: dict[str, dict[int, float | None]] = {}
    for file in ("metrics.jsonl", "metrics_evaluator.jsonl"):
        # What follows the last line break is just being written.
        lines = _text(path, file, notes).split("\n")[:-1]
        wrong = sum(not _add(line, values) for line in lines)
        if wrong:
            notes.append(f"{wrong} lines of {file} are not logs of a run.")
    configuration = bindings_of(_text(path, "config.gin", notes))
    return Run(name, path, state, values, configuration, notes)


def _text(path: str, name: str, notes: list[str]) -> str:
    """The text of a file; empty, with a note, if it cannot be read."""
    try:
        return read(os.path.join(path, name)).decode(errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        notes.append(f"{name} cannot be read: {error.strerror}.")
        return ""


def _json(path: str, name: str, notes: list[str]) -> dict[str, Any]:
    try:
        found = json.loads(_text(path, name, notes) or "{}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        notes.append(f"{name} is not a JSON object.")
        return {}
    return found


def _add(line: str, values: dict[str, dict[int, float | None]]) -> bool:
    """Adds the values of a line; returns whether it is a log of a run."""
    try:
        found = dict(json.loads(line))
        step, split = int(found.pop("step", None)), str(found.pop("split", ""))
        for name, value in names_in_logs(split, found).items():
            if value is None or type(value) in (int, float):
                known = value is not None and math.isfinite(value)
                values.setdefault(name, {})[step] = value if known else None
    except (ValueError, TypeError, OverflowError, RecursionError):
        return False
    return True


def print_table(
    runs: Sequence[Run], metric: str, sign: float, console: Console
) -> None:
    """Prints a line for each run, and notes on them."""
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    differ = differing(runs)
    for column in ("run", "state", "step", metric, "at", *map(_short, differ)):
        table.add_column(_shown(column), overflow="fold")
    for number, run in enumerate(runs):
        value, at = run.best(metric, sign) or (math.nan, "-")
        texts = [run.name, run.state, str(run.step or "-")]
        texts += [f"{sign * value:.4g}", str(at)]
        texts += [values[number] for values in differ.values()]
        table.add_row(*map(_shown, texts))
    console.print(table)
    for run in runs:
        for note in run.notes:
            console.print(_shown(f"{run.name}: {note}"), style="dim")


def differing(runs: Sequence[Run]) -> dict[str, list[str]]:
    """By parameter its value in each run, empty where it is not set."""
    used = [_used(run.configuration) for run in runs]
    found = {
        name: [one.get(name, "") for one in used]
        for name in sorted({name for one in used for name in one})
    }
    return {k: values for k, values in found.items() if len(set(values)) > 1}


def _used(configuration: dict[str, str]) -> dict[str, str]:
    """Returns the configuration, with one name for the learning rate."""
    used = dict(configuration)
    rate = used.pop(_RATE, "None")
    if rate != "None":
        optimizer = _REFERENCE.fullmatch(used.get("Trainer.optimizer", ""))
        name = f"{optimizer[1]}.learning_rate" if optimizer else _RATE
        used[name] = rate
    return used


def _short(name: str) -> str:
    """A parameter with the class or function that it belongs to."""
    return ".".join(name.split(".")[-2:])


def draw(runs: Sequence[Run], metric: str, path: str, *, log: bool) -> None:
    """Draws a metric of the first runs that have logged it.

    Raises:
        UserError: none has, or the file cannot be written.
    """
    shown = [run for run in runs if metric in run.values]
    if not shown:
        raise UserError("--plot: no run has logged any values.")
    if len(shown) > plot.MOST:
        standard_streams.say(f"--plot draws the first {plot.MOST} runs.")
        shown = shown[: plot.MOST]
    title, labels = _legend(shown)
    in_training = metric.removeprefix("val_") if "val_" in metric else ""
    curves = [
        plot.Curve(label, run.values[metric], run.values.get(in_training, {}))
        for label, run in zip(labels, shown, strict=True)
    ]
    plot.write(path, metric, curves, title=title, log=log)


def _legend(runs: Sequence[Run]) -> tuple[str, list[str]]:
    """A title and a label for each run, of what differs."""
    differ = differing(runs)
    rows = list(zip(*differ.values(), strict=True)) or [()] * len(runs)
    labels = []
    for run, row in zip(runs, rows, strict=True):
        words = [textwrap.shorten(one, 30) or "-" for one in row]
        # Runs that differ in nothing could not be told apart without it.
        if rows.count(row) > 1:
            words.append(run.name)
        labels.append(standard_streams.printable(", ".join(words)))
    return ", ".join(map(_short, differ)) or "run", labels


def _shown(text: str) -> Text:
    # Brackets are markup to rich.
    return Text(standard_streams.printable(text))


def resumed(name: str, arguments: Sequence[str]) -> list[str]:
    """Returns the arguments that continue a run.

    Args:
        name: its path, or the end of that below `runs`.
        arguments: flags of `trainer` that win over those of its command.

    Raises:
        UserError: there is no such run, or several; or it has no command.
    """
    if any(one.lstrip("-").startswith("model_dir") for one in arguments):
        raise UserError(
            "--resume says where the run is: leave --model_dir out."
        )
    path = _directory(name)
    try:
        words = shlex.split(str(_json(path, "run.json", []).get("command")))
    except ValueError:
        words = []
    if words[:3] != command.START:
        raise UserError(
            f"{path}/run.json does not say how the run was started: give its "
            f"--gin_file and --model_dir={path}."
        )
    return [*words[3:], *arguments, f"--model_dir={path}"]


def _directory(name: str) -> str:
    if os.path.isfile(os.path.join(name, "run.json")):
        return os.path.normpath(name)
    known = find(_HOME) if os.path.isdir(_HOME) else {}
    found = [one for one in known if f"/{one}".endswith(f"/{name.strip('/')}")]
    if len(found) == 1:
        return known[found[0]]
    if found:
        raise UserError(
            f"--resume={name} may be {', '.join(found)}. Write more of it."
        )
    raise UserError(
        f"--resume={name}: there is no such run below {_HOME}. "
        f"{nearest(name, known)}"
    )


if __name__ == "__main__":
    # Before anything is opened, which would get the number of a closed stream.
    standard_streams.protect()
    sys.exit(main())

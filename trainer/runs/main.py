"""`python -m trainer.runs`: a table of runs, the best first."""

import json
import math
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags as absl_flags
from rich.console import Console

from trainer.cli import flags as trainer_flags
from trainer.cli.flag_table import HELP_FLAGS
from trainer.errors import (
    EXIT_DONE,
    EXIT_USER_ERROR,
    UserError,
    did_you_mean,
)
from trainer.runs.comparing import Comparison, compare
from trainer.runs.finding import Found, find
from trainer.runs.plot import write_plot
from trainer.runs.reading import Run, read_run
from trainer.runs.series import last
from trainer.runs.table import print_table, summary
from trainer.runtime.charts import require_matplotlib
from trainer.runtime.standard_streams import require_output

_HELP = """\
Compares runs: a table, the best first, with what differs in their
configurations. It only reads.

Usage:
  python -m trainer.runs [DIR] [flags]
      All runs below a folder, by default runs.

Flags:
  --sort_by=METRIC   The value that orders them, such as val_accuracy. Default:
                     val_loss, or loss where there is none.
  --mode=min|max     Which of its values is the best. Default: by its name, as
                     the callback EarlyStopping does.
  --plot=FILE        Also draw the values over the steps, such as to runs.png.
                     Needs matplotlib.
  --json             Print JSON, with all values and configurations.

Exit codes: 0 done; 2 a mistake in the flags, or no run there.
"""
_MODES = ("auto", "min", "max")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line.

    Args:
        arguments: without the program's name; `sys.argv[1:]` by default.

    Returns:
        The exit code: 0 for done, 2 for a user's mistake.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if HELP_FLAGS.intersection(given):
            sys.stdout.write(_HELP)
        else:
            _execute(given)
        require_output()
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return EXIT_USER_ERROR
    return EXIT_DONE


def show(directory: str, console: Console | None = None) -> None:
    """Prints the table of the runs in a folder, if there are any.

    Raises:
        UserError: what orders them is unclear.
    """
    found = find(directory)
    if found.runs:
        print_table(compare(_read(found, directory)), console or Console())


def _execute(arguments: Sequence[str]) -> None:
    directory, values = _parse(arguments)
    if values["plot"].value is not None:
        require_matplotlib("--plot")
    found = find(directory)
    comparison = compare(
        _read(found, directory), values["sort_by"].value, values["mode"].value
    )
    if values["json"].value:
        sys.stdout.write(f"{json.dumps(as_json(comparison), indent=2)}\n")
    else:
        console = Console()
        print_table(comparison, console)
        for line in summary(found.empty, found.notes):
            console.print(line, style="dim")
    if values["plot"].value is not None:
        said = write_plot(comparison, values["plot"].value)
        # On stderr, so that JSON stays JSON.
        sys.stderr.write(f"{said}\n")


def _parse(arguments: Sequence[str]) -> tuple[str, absl_flags.FlagValues]:
    values = absl_flags.FlagValues()
    values.set_gnu_getopt()
    for name in ("sort_by", "plot"):
        absl_flags.DEFINE_string(name, None, "", flag_values=values)
    absl_flags.DEFINE_boolean("json", False, "", flag_values=values)
    absl_flags.DEFINE_enum("mode", "auto", _MODES, "", flag_values=values)
    try:
        rest = values(["trainer.runs", *arguments])[1:]
    except absl_flags.UnrecognizedFlagError as error:
        hint = did_you_mean(error.flagname, [*values, "help"], prefix="--")
        raise UserError(
            f"Unknown flag --{error.flagname}.{hint} --help lists the flags."
        ) from None
    except (absl_flags.Error, ValueError) as error:
        kinds = {"mode": _MODES, "json": "true or false"}
        raise UserError(trainer_flags.bad_value(str(error), kinds)) from None
    if len(rest) > 1:
        raise UserError(
            f"Unexpected argument {rest[1]!r}: name one folder that holds all "
            "runs to compare."
        )
    return (rest or ["runs"])[0], values


def _read(found: Found, directory: str) -> list[Run]:
    if not found.runs:
        notes = " ".join(["", *found.notes])
        raise UserError(f"There is no run in {directory}.{notes}")
    return [read_run(name, path) for name, path in found.runs.items()]


def as_json(comparison: Comparison) -> dict[str, Any]:
    """The runs as JSON values; `null` stands for what is not finite."""
    return {
        "sort_by": comparison.metric,
        "mode": comparison.mode,
        "differs": list(comparison.differences),
        "runs": [
            {
                "name": run.name,
                "path": run.path,
                "state": run.state,
                "step": run.step,
                "start": run.start,
                "seconds": run.seconds,
                "metrics": _metrics(comparison, run),
                "differences": {
                    name: values[number]
                    for name, values in comparison.differences.items()
                },
                "configuration": run.configuration,
                "notes": run.notes,
            }
            for number, run in enumerate(comparison.runs)
        ],
    }


def _metrics(comparison: Comparison, run: Run) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, values in sorted(run.series.items()):
        step, value = last(values)
        found[name] = {
            "last": value if math.isfinite(value) else None,
            "last_step": step,
        }
        if name == comparison.metric:
            best = comparison.best(run) or (None, None)
            found[name] |= {"best": best[1], "best_step": best[0]}
    return found

"""The table that `--strategy=help` prints."""

import inspect

import rich.box
import rich.console
import rich.table

from trainer.errors import UserError
from trainer.strategy.plugin import StrategyPlugin
from trainer.strategy.registry import strategies


def print_strategies() -> None:
    """Prints the installed strategies and what each one has detected."""
    console = rich.console.Console()
    table = rich.table.Table(
        rich.table.Column("--strategy", no_wrap=True),
        "What it is",
        "How it works, and when to choose it",
        "Found here",
        box=rich.box.SIMPLE,
    )
    for name, plugin in sorted(strategies().items()):
        # The first two paragraphs of a plugin's docstring are its entry.
        about = (inspect.getdoc(plugin) or "").split("\n\n")[:2]
        what, how = (" ".join(part.split()) for part in (*about, "", "")[:2])
        table.add_row(name, what, how, _found(plugin))
    console.print(table)
    console.print(
        "--strategy=auto takes the best one that has found something.",
        highlight=False,
    )


def _found(plugin: type[StrategyPlugin]) -> str:
    try:
        detection = plugin.detect()
    # A broken TF_CONFIG should show up in its row, and not hide the table.
    except UserError as error:
        return str(error)
    return "-" if detection is None else detection.found

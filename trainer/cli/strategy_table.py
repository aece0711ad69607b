"""The table that `--strategy=help` prints."""

import inspect

import rich.box
import rich.console
import rich.table

from trainer.errors import UserError
from trainer.registry import strategies
from trainer.strategy import StrategyPlugin


def print_strategies(console: rich.console.Console | None = None) -> None:
    """Prints which strategies are installed and what each found here.

    Args:
        console: where to; standard output by default.
    """
    console = console or rich.console.Console()
    table = rich.table.Table(
        "--strategy", "What it is", "Found here", box=rich.box.SIMPLE
    )
    for name, plugin in sorted(strategies().items()):
        about = (inspect.getdoc(plugin) or "").split("\n")[0]
        table.add_row(name, about, _found(plugin))
    console.print(table)
    console.print(
        "--strategy=auto takes the best of those that found something.",
        highlight=False,
    )


def _found(plugin: type[StrategyPlugin]) -> str:
    try:
        detection = plugin.detect()
    except UserError as error:
        return str(error)
    return "-" if detection is None else detection.found

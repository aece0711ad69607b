"""Finds the plugins that are installed or imported.

A package offers plugins through the entry point group `trainer.plugins`:

    [options.entry_points]
    trainer.plugins =
        my_strategy = my_package.my_strategy:MyStrategy

A strategy is also found by its `name` once its module is imported, such as by
an `import` line of a gin file.
"""

import functools
import importlib.metadata
import inspect
from typing import Any

import tensorflow as tf
from absl import logging

from trainer.errors import UserError, nearest
from trainer.strategy.plugin import StrategyPlugin

GROUP = "trainer.plugins"


@functools.cache
def load_plugins() -> dict[str, Any]:
    """Imports every installed plugin, once.

    A plugin that cannot be imported is left out with a warning: a broken
    package must not stop a run that does not use it.

    Returns:
        The loaded objects by the names of their entry points.
    """
    found = {}
    for entry in importlib.metadata.entry_points(group=GROUP):
        try:
            found[entry.name] = entry.load()
        # An import can fail in any way, not only with ImportError.
        except Exception as error:
            logging.warning(
                "Plugin %s (%s) cannot be imported: %s",
                entry.name,
                entry.value,
                error,
            )
    return found


def strategies() -> dict[str, type[StrategyPlugin]]:
    """Returns all installed or imported strategy plugins by name."""
    load_plugins()
    return dict(StrategyPlugin.known)


def check_strategy(name: str) -> None:
    """Refuses a strategy that there is not.

    Args:
        name: as given, or `"auto"`.

    Raises:
        UserError: it is none of them.
    """
    valid = ["auto", *strategies()]
    if name not in valid:
        raise UserError(f"Unknown strategy {name!r}. {nearest(name, valid)}")


def find_strategy(
    name: str | StrategyPlugin | tf.distribute.Strategy, **options: Any
) -> StrategyPlugin:
    """Creates the strategy plugin with a name.

    Args:
        name: a plugin's name, or `"auto"` for the one that fits best; or a
            plugin, or a strategy that the user has made.
        **options: constructor arguments that only some plugins take, such as
            `devices`; `None` means not given.

    Raises:
        UserError: there is no such strategy, or an option is not for it.
    """
    if isinstance(name, StrategyPlugin):
        return name
    if isinstance(name, tf.distribute.Strategy):
        return _plugin_of(name)
    check_strategy(name)
    known = strategies()
    if name == "auto":
        name = _best(known)
    # A flag that was not given must not override a gin binding.
    given = {key: value for key, value in options.items() if value is not None}
    for option in given:
        if not _takes(known[name], option):
            takers = [key for key in known if _takes(known[key], option)]
            raise UserError(
                f"--{option} has no meaning for the strategy {name!r}. It is "
                f"for: {', '.join(sorted(takers)) or 'none installed'}."
            )
    return known[name](**given)


def _plugin_of(strategy: tf.distribute.Strategy) -> StrategyPlugin:
    """The plugin for a strategy that the user has made.

    Raises:
        UserError: no plugin can take it over: those that need peers or a TPU
            start them themselves.
    """
    known = strategies()
    for plugin in known.values():
        if type(strategy) is plugin.takes_over:
            made = plugin()
            # In place of what `create` would return.
            made.__dict__["strategy"] = strategy
            return made
    raise UserError(
        f"strategy is a {type(strategy).__name__}, which the Trainer must "
        "start itself, to find devices and peers, and to end it with them. "
        f"Pass its name: {', '.join(['auto', *known])}."
    )


def _takes(plugin: type[StrategyPlugin], option: str) -> bool:
    return option in inspect.signature(plugin).parameters


def _best(known: dict[str, type[StrategyPlugin]]) -> str:
    detected = {
        name: detection
        for name, plugin in known.items()
        if (detection := plugin.detect()) is not None
    }
    if not detected:
        raise UserError(
            "No strategy plugin fits this machine. Install this project "
            "(pip install -e .) or name one with --strategy=NAME."
        )
    best = max(detected, key=lambda name: detected[name].rank)
    logging.info("Strategy %s: %s", best, detected[best].found)
    return best

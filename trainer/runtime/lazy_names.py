"""Lazy imports: names of a module that are imported at their first use."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(module: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Returns a module's `__getattr__`, see PEP 562.

    Args:
        module: the `__name__` of the module.
        homes: maps a name to the module or package that defines it.
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home = importlib.import_module(homes[name])
        if not hasattr(home, name):  # A submodule not imported yet.
            return importlib.import_module(f"{homes[name]}.{name}")
        return getattr(home, name)

    return load

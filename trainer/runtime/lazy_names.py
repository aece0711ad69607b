"""Lazy imports: names of a module that are imported at their first use."""

import ast
import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any


def lazy_names(
    module: str, before: Callable[[str], None] = lambda home: None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns a module's `__getattr__` and `__dir__`, see PEP 562.

    The module lists its names under `if TYPE_CHECKING:`, as imports of the form
    that exports a name to type checkers, `from home import name as name`. They
    are its `__all__`, and all that completion offers.

    Args:
        module: the `__name__` of the module.
        before: is called with the name of the module that is about to be
            imported for one of the names.
    """

    @functools.cache
    def homes() -> dict[str, str]:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
        return {
            alias.name: node.module
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
            if alias.asname == alias.name
        }

    def load(name: str) -> Any:
        if name == "__all__":
            return names()
        # What Python itself looks for, such as `__path__`, needs no parsing.
        home = None if name.startswith("__") else homes().get(name)
        if home is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        before(home)
        # It imports a submodule, too.
        return getattr(__import__(home, fromlist=[name]), name)

    def names() -> list[str]:
        return sorted(homes())

    return load, names

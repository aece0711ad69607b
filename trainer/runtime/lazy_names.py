"""Lazy imports: names of a module that are imported at their first use."""

import ast
import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any


def lazy_names(
    module: str, before: Callable[[str], None] = lambda home: None
) -> Callable[[str], Any]:
    """Returns a module's `__getattr__`, see PEP 562.

    The module lists its names as imports under `if TYPE_CHECKING:`, where
    type checkers and editors find them, too.

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
            for block in tree.body
            if isinstance(block, ast.If)
            for node in block.body
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
        }

    def load(name: str) -> Any:
        # What Python itself looks for, such as `__path__`, needs no parsing.
        home = None if name.startswith("__") else homes().get(name)
        if home is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        before(home)
        # It imports a submodule, too.
        return getattr(__import__(home, fromlist=[name]), name)

    return load

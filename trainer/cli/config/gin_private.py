"""gin's private names, all of them; each is required when this is imported.

gin's public API binds, reads and finalizes. It cannot list what is registered
and bound, nor say what calls have used, nor let a file be read statement by
statement.
"""

from typing import Any

from gin import config

from trainer.runtime.private_names import require

# Scope and complete selector.
Key = tuple[str, str]
# Where each (scope, complete selector, parameter) was last set.
Origins = dict[tuple[str, str, str], str]

MACRO = "gin.macro"
# All configurables, by complete selector.
REGISTRY = require(config, "_REGISTRY")
# What is bound: parameters and their values, by key.
BOUND: dict[Key, dict[str, Any]] = require(config, "_CONFIG")
# The imports of `gin.config_str()`.
IMPORTS = require(config, "_IMPORTS")
# A context for the names that one file imports.
parse_scope = require(config, "_parse_scope")
_OPERATIVE = require(config, "_OPERATIVE_CONFIG")


def operative() -> dict[Key, dict[str, Any]]:
    """Returns the parameters that calls have used so far, by active scope."""
    # Data plugins may call configurables on other threads meanwhile, and a copy
    # of a dict is made in one go.
    return {key: dict(values) for key, values in dict(_OPERATIVE).items()}


def enclosing(scope: str) -> list[str]:
    """Returns the scope and those around it, the outermost first."""
    parts = scope.split("/") if scope else []
    return ["/".join(parts[:count]) for count in range(len(parts) + 1)]

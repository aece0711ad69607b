"""The names in a gin file beside those that its imports register.

The public classes of Keras have names without an import line: `@Adam`,
`@losses.MeanSquaredError` and `@keras.layers.Dense`. They are unchanged: gin's
`external_configurable` wraps the call, not the class, so that instances keep
their type, name and serialization. (`gin.configurable` would replace
`__init__`, which breaks Keras layers.)

The installed packages are `trainer_plugins` and `trainer_experiments`, so that
`plugins` and `experiments` can be the user's own. Older gin files and run
directories contain `plugins.callbacks.Checkpoint` or
`import experiments.mnist`. Such a name is translated only if the user has
nothing by that name.
"""

import functools
import inspect
import re
from collections.abc import Iterator
from types import ModuleType

import gin
import keras

from trainer.cli.config import gin_private as internals

_MODULES: dict[str, ModuleType] = {
    "keras.callbacks": keras.callbacks,
    "keras.initializers": keras.initializers,
    "keras.layers": keras.layers,
    "keras.losses": keras.losses,
    "keras.metrics": keras.metrics,
    "keras.optimizers": keras.optimizers,
    "keras.optimizers.schedules": keras.optimizers.schedules,
    "keras.regularizers": keras.regularizers,
}
_RENAMED = {"plugins": "trainer_plugins", "experiments": "trainer_experiments"}
# Only the first part of a dotted name, and only if more parts follow.
_IN_TEXT = re.compile(rf"(?<![\w.])({'|'.join(_RENAMED)})(?=\.\w)")


# Gin refuses to register a name a second time.
@functools.cache
def register_keras() -> None:
    """Registers every public Keras class once, under its public module."""
    with internals.without_methods():
        for module_name, module in _MODULES.items():
            for name, member in _public(module):
                gin.external_configurable(member, name=name, module=module_name)


def _public(module: ModuleType) -> Iterator[tuple[str, type]]:
    """Yields each class once, under its own name if possible.

    Functions are left out: a layer accepts an activation by its name, and
    `linear` or `softmax` would collide with a user's own functions.
    """
    for name, member in sorted(vars(module).items()):
        if name.startswith("_") or not inspect.isclass(member):
            continue
        # Keras exports some classes twice, such as `Conv2D` and
        # `Convolution2D`; gin would list both as candidates for a name.
        own_name = member.__name__
        if name == own_name or getattr(module, own_name, None) is not member:
            yield name, member


def present_name(name: str) -> str | None:
    """Returns the current name for an old dotted name, or `None`."""
    root, _, rest = name.partition(".")
    return f"{_RENAMED[root]}.{rest}" if rest and root in _RENAMED else None


def with_present_names(text: str) -> str:
    """Returns a configuration with current names, for comparisons."""
    return _IN_TEXT.sub(lambda found: _RENAMED[found[1]], text)

"""The names of Keras' classes in a gin file.

They need no import line: `@Adam`, `@losses.MeanSquaredError` and
`@keras.layers.Dense`. The classes are unchanged: gin's
`external_configurable` wraps the call, not the class, so that instances keep
their type, name and serialization. (`gin.configurable` would replace
`__init__`, which breaks Keras layers.)
"""

import functools
import inspect
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

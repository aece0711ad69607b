"""Copies state of an object that its configuration does not hold.

A copy is made from a configuration, which lacks weights, vocabularies, flags of
single variables, and attributes that were set later. An object without
variables is shared by both.
"""

import gc
import tempfile
import types
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.errors import UserError
from trainer.step.keras.private import (
    all_layers,
    kept_by_keras,
    put_names,
)

# What belongs to one object, and cannot be shared with its copy.
_STATE = (
    *(keras.KerasTensor, keras.Layer, keras.Metric, keras.Variable),
    *(keras.optimizers.Optimizer, keras.random.SeedGenerator),
    *(tf.Module, tf.Variable, tf.saved_model.experimental.TrackableResource),
)
_Table = tf.lookup.experimental.MutableHashTable
_WHOLE = (str, bytes, int, float, type, types.ModuleType, np.ndarray)


def hand_over_values(source: keras.Model, target: keras.Model) -> None:
    """Gives a copy weights, vocabularies and the like, where there are any."""
    for own, its in zip(all_layers(source), all_layers(target), strict=True):
        if own.built and not its.built:
            its.build_from_config(own.get_build_config())
        if own.built and _has_own_values(own):
            store: dict[str, Any] = {}
            own.save_own_variables(store)
            arrays = {k: np.asarray(value) for k, value in store.items()}
            its.load_own_variables(arrays)
        if hasattr(own, "save_assets") and hasattr(its, "load_assets"):
            with tempfile.TemporaryDirectory() as folder:
                own.save_assets(folder)
                its.load_assets(folder)
        # Files hold no vocabulary in place of the configuration's.
        if hasattr(own, "set_vocabulary"):
            words = own.get_vocabulary()
            if its.get_vocabulary() != words:
                its.set_vocabulary(words)
        # Last: a layer may save fewer weights than it has, or merge them.
        if own.built and not source.built:
            its.set_weights(own.get_weights())
    if source.built:
        target.set_weights(source.get_weights())


def hand_over_flags(source: keras.Model, target: keras.Model) -> None:
    """Lets a copy train the same variables, and treat them alike."""
    # From the outside in, as a layer's flag sets those of its own layers.
    for own, its in zip(all_layers(source), all_layers(target), strict=True):
        if its.trainable != own.trainable:
            its.trainable = own.trainable
    for mine, other in zip(source.weights, target.weights, strict=True):
        for name in ("trainable", "regularizer", "constraint"):
            if getattr(other, name) is not getattr(mine, name):
                setattr(other, name, getattr(mine, name))


def hand_over_attributes(source: Any, target: Any, what: str) -> None:
    """Gives a copy the attributes that were set since its making.

    Args:
        source: a layer or an optimizer.
        target: its copy, in the same state of being built.
        what: it is, for messages.

    Raises:
        UserError: an attribute belongs to the source, and the copy has none
            like it.
    """
    known = kept_by_keras() | put_names(source)
    for name, value in vars(source).items():
        there = vars(target).get(name)
        if name in known or name.startswith("_self_") or value is there:
            continue
        holds = _holds_state(value), _holds_state(there)
        if not any(holds):
            vars(target)[name] = value
        # What Keras does not track, and so does not save.
        elif isinstance(value, tf.Variable) and isinstance(there, tf.Variable):
            there.assign(value.read_value())
        elif isinstance(value, _Table) and isinstance(there, _Table):
            there.insert(*value.export())
        # Keras' own layers load what they hold; the rest is left of `adapt`.
        elif not all(holds) and not _is_of_keras(source):
            raise UserError(
                f"{what} has an attribute {name!r} which holds variables or "
                "layers, but its configuration does not make it. The copy that "
                "is needed in the strategy's scope would lack it. Pass a "
                "function that makes it: Trainer(model=lambda: ...) or "
                "Trainer(optimizer=lambda: ...)."
            )


def _has_own_values(layer: keras.Layer) -> bool:
    kind = type(layer)
    return (
        kind.load_own_variables is not keras.Layer.load_own_variables
        or kind.save_own_variables is not keras.Layer.save_own_variables
    )


def _is_of_keras(one: Any) -> bool:
    return type(one).__module__.partition(".")[0] == "keras"


def _holds_state(value: Any) -> bool:
    """Whether an attribute holds what belongs to one object."""
    found, seen = [value], set()
    while found:
        one = found.pop()
        if isinstance(one, _STATE):
            return True
        # The names of a module, which a function refers to, are not its own.
        is_whole = isinstance(one, _WHOLE) or tf.is_tensor(one)
        is_module = isinstance(one, dict) and "__builtins__" in one
        if id(one) not in seen and not is_whole and not is_module:
            seen.add(id(one))
            found += gc.get_referents(one)
    return False

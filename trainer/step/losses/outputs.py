"""A model's outputs by position, and what is given for each of them.

Losses, loss weights, targets, sample weights, metrics and logs are lists in the
model's order, that of `keras.tree.flatten`. Names are for people: two outputs
of one layer or nested model have one name in Keras, and are numbered here.
"""

import collections
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from trainer.errors import UserError, nearest


class Outputs:
    """The outputs of a model, or the losses of a `per_example_loss`.

    Args:
        y_pred: the outputs, or anything of their structure.
        names: the names that the model gives them, in its order; `None` if it
            gives none.

    Attributes:
        names: of the outputs, each once.
        labels: the same as Keras has them: outputs of one layer share one.
    """

    def __init__(self, y_pred: Any, names: Sequence[str] | None = None) -> None:
        self._structure = keras.tree.map_structure(lambda _: 0, y_pred)
        count = len(keras.tree.flatten(y_pred))
        given = [str(name) for name in names or ()]
        if isinstance(y_pred, Mapping) and len(y_pred) == count:
            numbered = keras.tree.pack_sequence_as(y_pred, range(count))
            given = sorted(numbered, key=numbered.__getitem__)
        elif len(given) != count:
            given = [str(i) for i in range(count)]
        self.labels, counts = given, collections.Counter(given)
        self._shared = {name for name in counts if counts[name] > 1}
        self.names = numbered_names(given)

    @classmethod
    def of(cls, model: keras.Model, y_pred: Any) -> "Outputs":
        """Those of a model."""
        return cls(y_pred, getattr(model, "output_names", None))

    def split(self, value: Any, *, what: str) -> list[Any]:
        """What is given for each output, `None` where nothing is.

        Args:
            value: a dict by name, a list, or the structure of the outputs.
            what: the value's name in an error message.

        Raises:
            UserError: it does not say what is for which output.
        """
        structure, count = self._structure, len(self.names)
        if isinstance(value, Mapping):
            nested = isinstance(structure, Mapping) and len(structure) < count
            if not (nested and set(value) == set(structure)):
                self._check_names(value, what)
                return [value.get(name) for name in self.names]
        # Outputs in a dict may have their losses in a list, as in Keras.
        elif isinstance(value, list | tuple) and len(value) == count:
            return list(value)
        if count == 1:
            return [value]  # [metric, metric] for a single output.
        found: list[Any] = []
        try:
            keras.tree.map_structure_up_to(
                structure,
                lambda _, part: found.append(part),
                structure,
                value,
            )
        except (ValueError, TypeError):
            raise UserError(
                f"{what} does not say which entry is for which of the outputs "
                f"{', '.join(self.names)}. Give a dict by output, such as "
                f"{{{self.names[0]!r}: ...}}, or a list with one entry for "
                "each."
            ) from None
        return found

    def tensors(self, value: Any, *, what: str = "The data") -> list[Any]:
        """The tensors of a batch for each output.

        Args:
            value: targets or weights; `None` or a single tensor stands for all
                outputs.
            what: the value's name in an error message.

        Raises:
            UserError: there are more or fewer.
        """
        count = len(self.names)
        if not keras.tree.is_nested(value):
            return [value] * count
        if isinstance(value, Mapping):
            # By name, even where the dict also has keys that are not outputs:
            # data may hold more than the losses use.
            self._check_shared(value, what)
            if any(name in value for name in self.names):
                return [value.get(name) for name in self.names]
        flat = keras.tree.flatten(value)
        if len(flat) not in (1, count):
            raise UserError(
                f"A batch has {len(flat)} targets or weights for the outputs "
                f"{', '.join(self.names)}: give one for each, such as a dict "
                "by output."
            )
        return flat if len(flat) == count else flat * count

    # AutoGraph warns that it cannot convert this.
    @tf.autograph.experimental.do_not_convert
    def _check_names(self, value: Mapping[str, Any], what: str) -> None:
        self._check_shared(value, what)
        for name in value:
            if name not in self.names:
                raise UserError(
                    f"{what} names {name!r}, which is not an output of the "
                    f"model. {nearest(name, self.names)}"
                )

    def _check_shared(self, value: Mapping[str, Any], what: str) -> None:
        """Refuses one name for several outputs, unless each has an entry."""
        shared = sorted(self._shared.intersection(value))
        if shared and not all(name in value for name in self.names):
            raise UserError(
                f"{what} names {shared[0]!r}, but several outputs of the model "
                "have this name. Give a list with one entry for each output, "
                "in the model's order."
            )


def numbered_names(names: Sequence[str]) -> list[str]:
    """Names of which each is there once: the second "a" becomes "a_1"."""
    found: list[str] = []
    for name in names:
        number, made = 0, name
        while made in found:
            number += 1
            made = f"{name}_{number}"
        found.append(made)
    return found


def losses_of(loss: Any, outputs: Outputs) -> list[Any]:
    """Each output's loss; a single one is for all of them.

    Raises:
        UserError: one is for no output, or an output has several.
    """
    if not keras.tree.is_nested(loss):
        return [loss] * len(outputs.names)
    found = []
    for i, part in enumerate(outputs.split(loss, what="loss")):
        flat = keras.tree.flatten(part)
        if len(flat) > 1:
            raise UserError(
                f"The output {outputs.names[i]!r} has {len(flat)} losses. Give "
                "it one, which may add them up."
            )
        found.append(flat[0] if flat else None)
    return found


def loss_weights_of(given: Any, outputs: Outputs) -> list[float | None]:
    """The weight of each output's loss; `None` where there is none.

    Raises:
        UserError: one is for no output, or is no number.
    """
    if given is None:
        return [None] * len(outputs.names)
    found = outputs.split(given, what="loss_weights")
    for name, weight in zip(outputs.names, found, strict=True):
        if not isinstance(weight, int | float | None):
            raise UserError(
                f"loss_weights has {weight!r} for the output {name!r}. Valid: "
                "a number."
            )
    return found


def weights_of_classes(
    y: Any, sample_weight: Any, classes: Mapping[int, float]
) -> tf.Tensor:
    """The sample weights that `class_weight` gives the examples of a batch.

    Raises:
        UserError: there are others, or several outputs.
    """
    if sample_weight is not None:
        raise UserError(
            "class_weight is given, and the data has sample weights as well. "
            "Choose one of them."
        )
    flat = keras.tree.flatten(y)
    if len(flat) != 1:
        raise UserError(
            f"class_weight is for a single output; the data has {len(flat)} "
            "targets. Use sample weights by output."
        )
    labels = tf.convert_to_tensor(flat[0])
    if labels.shape.rank > 1 and labels.shape[-1] == 1:
        labels = tf.squeeze(labels, -1)
    elif labels.shape.rank > 1:
        labels = tf.argmax(labels, -1)  # One-hot vectors.
    if labels.dtype.is_floating:
        labels = tf.round(labels)
    labels = tf.cast(labels, tf.int64)
    # A lookup table, so that it works in a graph and on a TPU. Classes that are
    # not given weigh 1, as in Keras.
    table = [classes.get(i, 1.0) for i in range(max(classes, default=0) + 1)]
    # tf.gather fails, or returns zeros on a GPU, outside of the table.
    inside = (labels >= 0) & (labels < len(table))
    known = tf.gather(
        tf.constant(table, tf.float32), tf.where(inside, labels, 0)
    )
    return tf.where(inside, known, 1.0)


def in_floatx(y: Any) -> Any:
    """Targets in the precision that Keras' `fit` gives them."""
    floatx = tf.as_dtype(keras.config.floatx())

    def cast(leaf: Any) -> Any:
        if tf.is_tensor(leaf) and leaf.dtype == tf.float64:
            return tf.cast(leaf, floatx)
        return leaf

    return tf.nest.map_structure(cast, y)

"""A model's outputs by position, and the values given for each.

Losses, loss weights, targets, sample weights, metrics and logs are lists in the
model's order, that of `keras.tree.flatten`. Names are for people: two outputs
of one layer or nested model have one name in Keras, and are numbered here.
"""

import collections
import numbers
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from trainer.errors import UserError, nearest
from trainer.step.keras.private import losses_at
from trainer.step.losses.keras_losses import KerasLoss


class OutputLoss(NamedTuple):
    """A loss of an output, or of several together.

    Attributes:
        position: of the output; `None` of several.
        positions: the same, or their structure.
        loss: a Keras loss; `None` for an output without.
        weight: of `loss_weights`; `None` without.
        key: what `per_example_loss` returns its values under.
        label: what it is logged as, with "_loss"; `None` without a loss.
    """

    position: int | None
    positions: Any
    loss: keras.losses.Loss | None
    weight: float | None
    key: str
    label: str | None


class Outputs:
    """The outputs of a model, or the losses of a `per_example_loss`.

    Args:
        y_pred: the outputs, or anything of their structure.
        names: the names that the model gives them, in its order; `None` if it
            gives none.

    Attributes:
        positions: of the outputs, in their structure.
        names: of the outputs, each once.
        labels: the same as Keras has them in the names of metrics: outputs of
            one layer share one, and without a name it is empty.
    """

    def __init__(self, y_pred: Any, names: Sequence[str] | None = None) -> None:
        paths = [path for path, _ in keras.tree.flatten_with_path(y_pred)]
        count = len(paths)
        self.positions = keras.tree.pack_sequence_as(y_pred, range(count))
        self.labels = [str(name) for name in names or ()]
        if isinstance(y_pred, Mapping) and len(y_pred) == count:
            self.labels = [str(key) for (key,) in paths]
        elif len(self.labels) != count:
            self.labels = [""] * count
        given = [name or str(i) for i, name in enumerate(self.labels)]
        counts = collections.Counter(given)
        self._shared = {name for name in counts if counts[name] > 1}
        self.names = numbered_names(given)

    @classmethod
    def of(cls, model: keras.Model, y_pred: Any) -> "Outputs":
        """Those of a model."""
        return cls(y_pred, getattr(model, "output_names", None))

    def split(self, value: Any, *, what: str) -> list[Any]:
        """Returns the value for each output, `None` where there is none.

        Args:
            value: a dict by name, a list, or the structure of the outputs, of
                which a part may be left out.
            what: the value's name in an error message.

        Raises:
            UserError: it does not say what is for which output.
        """
        positions, count = self.positions, len(self.names)
        found: list[Any] = [None] * count
        if isinstance(value, Mapping) and self.are_named_in(value):
            self._check_names(value, what)
            return [value.get(name) for name in self.names]
        # Outputs in a dict may have their metrics in a list, as in Keras.
        if isinstance(value, list | tuple) and len(value) == count:
            return list(value)
        if count == 1 and not isinstance(value, Mapping):
            return [value]  # [metric, metric] for a single output.
        if not _spread(positions, value, found):
            raise self.unclear(what)
        return found

    def are_named_in(self, value: Mapping[str, Any]) -> bool:
        """Whether the keys of a dict are names of outputs, not of a dict's."""
        positions = self.positions
        is_like = isinstance(positions, Mapping)
        return not is_like or bool(value.keys() - positions.keys())

    def unclear(self, what: str) -> UserError:
        """Says that a value is for no outputs."""
        return UserError(
            f"{what} does not say which entry is for which of the outputs "
            f"{', '.join(self.names)}. Give a dict by output, such as "
            f"{{{self.names[0]!r}: ...}}, or a list with one entry for each."
        )

    def tensors(
        self, value: Any, *, what: str = "The data", wanted: Sequence[int] = ()
    ) -> list[Any]:
        """The tensors of a batch for each output.

        Args:
            value: targets or weights; `None` or a single tensor stands for all
                outputs.
            what: the value's name in an error message.
            wanted: the positions of outputs that have a loss: only these may
                have one, too.

        Raises:
            UserError: there are more or fewer.
        """
        count = len(self.names)
        if not keras.tree.is_nested(value):
            return [value] * count
        found: list[Any] = [None] * count
        if isinstance(value, Mapping):
            # By name, even where the dict also has keys that are not outputs:
            # data may hold more than the losses use.
            self._check_shared(value, what)
            inner = self.positions
            keys = set(inner) if isinstance(inner, Mapping) else set()
            if any(name in value for name in {*self.names} - keys):
                return [value.get(name) for name in self.names]
            known = {key: value[key] for key in keys.intersection(value)}
            if known and _spread(inner, known, found):
                return found
        flat = keras.tree.flatten(value)
        if len(flat) not in (1, count, len(wanted)):
            raise UserError(
                f"A batch has {len(flat)} targets or weights for the outputs "
                f"{', '.join(self.names)}: give one for each, such as a dict "
                "by output."
            )
        if len(flat) == count:
            return flat
        # As in Keras: of the outputs that have a loss.
        for i, position in enumerate(wanted or range(count)):
            found[position] = flat[i % len(flat)]
        return found

    def _check_names(self, value: Mapping[str, Any], what: str) -> None:
        self._check_shared(value, what)
        for name in value:
            if name not in self.names:
                raise UserError(
                    f"Invalid `{what}`: {name!r} is not an output of the "
                    "model. Expected keys are the names of outputs. "
                    f"{nearest(name, self.names)}"
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


def _spread(positions: Any, value: Any, found: list[Any]) -> bool:
    """Puts the parts of a value to the positions that they are for.

    Returns:
        Whether its structure says which these are.
    """
    if not keras.tree.is_nested(positions):
        found[positions] = value
        return True
    if not keras.tree.is_nested(value):
        for position in keras.tree.flatten(positions):
            found[position] = value
        return True
    if isinstance(value, Mapping):
        if not isinstance(positions, Mapping) or value.keys() - positions:
            return False
        return all(
            _spread(positions[key], part, found) for key, part in value.items()
        )
    inner = keras.tree.flatten(positions)
    if isinstance(positions, list | tuple) and len(positions) == len(value):
        inner = list(positions)
    return len(inner) == len(value) and all(
        _spread(*pair, found) for pair in zip(inner, value, strict=True)
    )


def losses_of(loss: Any, weights: Any, outputs: Outputs) -> list[OutputLoss]:
    """The losses of the outputs, in their order; of one there may be several.

    Those of several outputs together come last.

    Args:
        loss: Keras losses, as `compile` takes them; a single one is for all
            outputs.
        weights: `loss_weights`: a number for all, or numbers by loss or output.
        outputs: what they are for.

    Raises:
        UserError: one is for no output, or a weight is no number.
    """
    names, positions = outputs.names, outputs.positions
    if not keras.tree.is_nested(loss):
        loss = [loss] * len(names)
    factors = keras.tree.flatten(weights)
    if not keras.tree.is_nested(weights):
        factors *= len(keras.tree.flatten(loss))
    elif isinstance(weights, Mapping) and _paths(weights) != _paths(loss):
        factors = outputs.split(weights, what="loss_weights")
        if isinstance(loss, Mapping):
            loss = outputs.split(loss, what="loss")
    leaves = keras.tree.flatten(loss)
    is_number = [
        one is None or isinstance(one, numbers.Real) for one in factors
    ]
    if len(factors) != len(leaves) or not all(is_number):
        raise UserError(
            f"loss_weights = {weights!r} does not fit the losses. Valid: a "
            "number, or one for each of them."
        )
    # No tuples: each is one leaf.
    pairs = [
        SimpleNamespace(loss=one, weight=factor)
        for one, factor in zip(leaves, factors, strict=True)
    ]
    loss = keras.tree.pack_sequence_as(loss, pairs)
    if isinstance(loss, Mapping) and outputs.are_named_in(loss):
        loss = outputs.split(loss, what="loss")
    if len(names) == 1:
        loss, positions = keras.tree.flatten(loss), 0
    try:
        bound = losses_at(loss, positions, outputs.labels)
    except (LookupError, TypeError):
        raise outputs.unclear("loss") from None
    found: list[OutputLoss] = []
    for i, name in enumerate(names):
        several: list[Any] = [one for at, *one in bound if at == i]
        for j, (one, weight, label) in enumerate(several or [(None,) * 3]):
            key = f"{name}/{j}" if j else name
            found.append(OutputLoss(i, i, one, weight, key, label))
    for at, one, weight, label in bound:
        if keras.tree.is_nested(at):
            if KerasLoss.of(one):
                raise outputs.unclear("loss")
            found.append(OutputLoss(None, at, one, weight, label, label))
    return found


def wanted_by(losses: Sequence[OutputLoss]) -> list[int]:
    """The positions of the outputs that have a loss."""
    found = [one.positions for one in losses if one.loss is not None]
    return sorted(set(keras.tree.flatten(found)))


def _paths(structure: Any) -> list[Any]:
    return [path for path, _ in keras.tree.flatten_with_path(structure)]


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

"""A table of the losses of Keras."""

import dataclasses
from typing import Any, Literal

import keras

from trainer.step.keras.private import function_of_loss, loss_by_shape

# What a loss takes as targets: a value for each value of the outputs (of two
# classes: from 0 to 1), a vector over the classes, the number of a class, or a
# sequence of such numbers.
Targets = Literal["value", "two", "vector", "number", "numbers"]

# By function; each is known to keep examples apart.
_TABLE: dict[str, Targets] = {
    "binary_crossentropy": "two",
    "binary_focal_crossentropy": "two",
    "categorical_crossentropy": "vector",
    "categorical_focal_crossentropy": "vector",
    "categorical_generalized_cross_entropy": "number",
    "categorical_hinge": "vector",
    "cosine_similarity": "value",
    "ctc": "numbers",
    "dice": "value",
    "hinge": "value",
    "huber": "value",
    "kl_divergence": "vector",
    "log_cosh": "value",
    "mean_absolute_error": "value",
    "mean_absolute_percentage_error": "value",
    "mean_squared_error": "value",
    "mean_squared_logarithmic_error": "value",
    "poisson": "value",
    "sparse_categorical_crossentropy": "number",
    "squared_hinge": "value",
    "tversky": "value",
}
# By default these return one value for all examples: they need an axis.
_OVER_ALL = ("dice", "tversky")


@dataclasses.dataclass(frozen=True)
class KerasLoss:
    """A loss that calls a function of `keras.losses`.

    Attributes:
        function: its name.
        title: as a class.
        options: what it is called with.
        targets: what it takes; `None` if it is not in the table.
    """

    function: str
    title: str
    options: dict[str, Any]
    targets: Targets | None

    @classmethod
    def of(cls, loss: keras.losses.Loss | None) -> "KerasLoss | None":
        """Returns the entry of a loss; `None` if it is not Keras' own."""
        function, options = function_of_loss(loss) if loss else (None, {})
        name = getattr(function, "__name__", "")
        # By identity: a function of a user's may have the same name.
        if not name or getattr(keras.losses, name, None) is not function:
            return None
        title = type(loss).__name__
        if title == "LossFunctionWrapper":
            title = "".join(part.capitalize() for part in name.split("_"))
        return cls(name, title, options, _TABLE.get(name))

    @property
    def is_over_all(self) -> bool:
        """Whether it is one value for all examples unless it has an axis."""
        return self.function in _OVER_ALL

    @property
    def is_by_example(self) -> bool:
        """Whether it is known to keep examples apart."""
        axis = self.options.get("axis", None if self.is_over_all else -1)
        axes = axis if isinstance(axis, list | tuple) else [axis]
        # Another axis may be that of the batch, as -2 is for outputs of rank 2.
        return self.targets is not None and all(
            one is not None and (one == -1 or one > 0) for one in axes
        )


def loss_by_name(name: str) -> Any:
    """Returns the loss that `compile` makes of a name."""
    return (
        _by_shape if name in ("crossentropy", "ce") else keras.losses.get(name)
    )


def _by_shape(y: Any, y_pred: Any) -> Any:
    """The crossentropy for binary, sparse or categorical targets."""
    return loss_by_shape("crossentropy", y, y_pred).call(y, y_pred)

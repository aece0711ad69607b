"""Names of a model's outputs, and what is given for each, as in `compile`."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from trainer.errors import UserError, nearest


class Outputs:
    """Names and order of a model's outputs.

    Args:
        y_pred: the model's outputs, or anything of their structure.
        names: the names that the model gives them, in its own order; `None`
            if it gives none.
    """

    def __init__(self, y_pred: Any, names: Sequence[str] | None = None) -> None:
        self._structure = keras.tree.map_structure(lambda _: 0, y_pred)
        count = len(keras.tree.flatten(y_pred))
        given = tuple(names or ())
        is_flat = keras.tree.is_nested(y_pred) and len(y_pred) == count
        if is_flat and isinstance(y_pred, Mapping):
            # Keras flattens a dict by sorted keys, an OrderedDict in its own
            # order: names must match keras.tree.flatten.
            if set(given) == set(y_pred):
                pass
            elif isinstance(y_pred, OrderedDict):
                given = tuple(y_pred)
            else:
                given = tuple(sorted(y_pred))
        elif len(given) != count:
            given = tuple(str(i) for i in range(count))
        self.names = given
        self._is_flat_dict = is_flat and isinstance(y_pred, Mapping)

    @property
    def is_single(self) -> bool:
        """Whether there is one output, which need not be named."""
        return len(self.names) == 1

    def split(
        self, value: Any, *, what: str, partial: bool = True
    ) -> list[Any]:
        """What is given for each output, `None` where nothing is.

        Args:
            value: a structure by output: a dict by name, a list, or the
                structure of the outputs themselves.
            what: the value's name in an error message.
            partial: whether an output may have none.

        Raises:
            UserError: it has entries for outputs that do not exist, or lacks
                some.
        """
        count = len(self.names)
        if isinstance(value, Mapping) and not self._is_alike(value):
            self._check_names(value, what)
            found = [value.get(name) for name in self.names]
        elif self._is_flat_dict and isinstance(value, Mapping):
            found = [value[name] for name in self.names]
        # Outputs in a dict may have their losses in a list, as in Keras.
        elif isinstance(value, list | tuple) and len(value) == count:
            found = list(value)
        # [metric, metric] for a single output.
        elif count == 1:
            found = [value]
        else:
            found = self._by_structure(value, what)
        missing = [
            name
            for name, part in zip(self.names, found, strict=True)
            if part is None
        ]
        if missing and not partial:
            raise UserError(
                f"{what} has nothing for the output {missing[0]!r}. Outputs: "
                f"{', '.join(self.names)}."
            )
        return found

    def tensors(self, value: Any) -> list[Any]:
        """The tensors of a batch for each output.

        Args:
            value: targets, outputs or weights; `None` or a single tensor
                stands for all outputs.
        """
        if not keras.tree.is_nested(value):
            return [value] * len(self.names)
        if isinstance(value, Mapping):
            # By name, even where the dict also has keys that are not outputs:
            # data may hold more than the losses use.
            known = [name for name in self.names if name in value]
            if known:
                return [value.get(name) for name in self.names]
        flat = keras.tree.flatten(value)
        if len(flat) == 1:
            return flat * len(self.names)
        if len(flat) != len(self.names):
            raise UserError(
                f"A batch has {len(flat)} targets or weights for the outputs "
                f"{', '.join(self.names)}: give one for each, such as a dict "
                "by output."
            )
        return flat

    def _is_alike(self, value: Any) -> bool:
        """Whether a value has the very structure of nested outputs."""
        if self._is_flat_dict:
            return set(value) == set(self.names)
        return isinstance(self._structure, Mapping) and set(value) == set(
            self._structure
        )

    # AutoGraph warns that it cannot convert this.
    @tf.autograph.experimental.do_not_convert
    def _check_names(self, value: Mapping[str, Any], what: str) -> None:
        for name in value:
            if name not in self.names:
                raise UserError(
                    f"{what} names {name!r}, which is not an output of the "
                    "model. "
                    f"{nearest(name, self.names)}"
                )

    def _by_structure(self, value: Any, what: str) -> list[Any]:
        try:
            found: list[Any] = []
            keras.tree.map_structure_up_to(
                self._structure,
                lambda _, part: found.append(part),
                self._structure,
                value,
            )
            return found
        except (ValueError, TypeError):
            raise UserError(
                f"{what} does not say which entry is for which of the outputs "
                f"{', '.join(self.names)}. Give a dict by output, such as "
                f"{{{self.names[0]!r}: ...}}, or a list with one entry for "
                "each."
            ) from None

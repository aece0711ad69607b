"""`History`: the values of each epoch, as Keras' `fit` returns them."""

import sys
from typing import Any

import keras

from trainer.errors import UserError
from trainer.loop.callback import Callback


class History(Callback, keras.callbacks.History):
    """The values at each epoch's end.

    A `keras.callbacks.History`, which this process has recorded: epochs of an
    earlier attempt are not in it.

    Attributes:
        epoch: the numbers of the epochs.
        history: name to the values, one for each epoch that had one:
            training values, and evaluation values as `val_*`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.epoch: list[int] = []
        self.history: dict[str, list[float]] = {}
        self._rows: list[dict[str, float]] = []

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Goes on; Keras' own forgets the numbers of the epochs."""

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Adds the values of an epoch."""
        self.epoch.append(epoch)
        self._add(dict(logs or {}))

    def extend(self, other: "History") -> None:
        """Adds the epochs of another history."""
        self.epoch += other.epoch
        for row in other._rows:
            self._add(row)

    def _add(self, row: dict[str, float]) -> None:
        self._rows.append(row)
        for name, value in row.items():
            self.history.setdefault(name, []).append(value)

    def __getstate__(self) -> dict[str, Any]:
        """What a pickle holds: values, without the run and its model."""
        plain = History()
        plain.extend(self)
        plain.params = self.params
        return plain.__dict__

    def frame(self) -> Any:
        """The values as a `pandas.DataFrame`, one row for each epoch.

        An epoch that was not evaluated has NaN there.

        Raises:
            UserError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise UserError(
                "History.frame needs pandas: pip install pandas. "
                "History.history has the values without it."
            ) from None
        index = pandas.Index(self.epoch, name="epoch")
        return pandas.DataFrame(self._rows, index=index)


def print_values(name: str, /, **values: float) -> None:
    """Prints a line such as `eval  loss 1.254  accuracy 0.3672`."""
    shown = [name, *(f"{k} {v:.4g}" for k, v in values.items())]
    sys.stdout.write(f"{'  '.join(shown)}\n")

"""`History`: the values of each epoch, as Keras' `fit` returns them."""

import re
import sys
from typing import Any

import keras

from trainer.errors import UserError
from trainer.loop.callback import Callback
from trainer.python.tables import html_table, short
from trainer.runtime.charts import require_matplotlib

# A table in a notebook has this many rows; `frame` has all.
_MOST_ROWS = 20
# Panels of a plot beside each other, and the inches of one.
_MOST_COLUMNS, _WIDTH, _HEIGHT = 3, 4.0, 2.8
# What an evaluation's values begin with: `val_`, or `val_` and its set.
_EVALUATION = re.compile(r"val_(?:[^/]+/)?")


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

    def __repr__(self) -> str:
        newest = self._rows[-1].items() if self._rows else ()
        values = (f", {name}={short(value)}" for name, value in newest)
        return f"History(epochs={len(self.epoch)}{''.join(values)})"

    def _repr_html_(self) -> str:
        rows = [
            (number, *map(row.get, self.history))
            for number, row in zip(self._numbers, self._rows, strict=True)
        ]
        left_out = len(rows) - _MOST_ROWS
        note = f"<p>{left_out} earlier epochs</p>" if left_out > 0 else ""
        table = html_table(("epoch", *self.history), rows[-_MOST_ROWS:])
        return note + table

    @property
    def _numbers(self) -> list[int]:
        """The epochs, from 1; in order, if several calls have the same."""
        repeats = len({*self.epoch}) < len(self.epoch)
        numbers = range(len(self.epoch)) if repeats else self.epoch
        return [number + 1 for number in numbers]

    def __getstate__(self) -> dict[str, Any]:
        """Returns the values to pickle, without the run and its model."""
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

    def plot(self) -> Any:
        """Plots the values over the epochs.

        Each value has a panel, which it shares with those of evaluations. The
        first epoch is 1, as in what a run prints.

        Returns:
            A list of `matplotlib.axes.Axes`. A notebook shows the figure;
            elsewhere, `history.plot()[0].figure.savefig("curve.png")` does.

        Raises:
            UserError: matplotlib is not installed, or there are no epochs.
        """
        require_matplotlib("History.plot")
        from matplotlib import pyplot

        panels: dict[str, list[str]] = {}
        for name in self.history:
            panels.setdefault(_EVALUATION.sub("", name), []).append(name)
        if not panels:
            raise UserError("History.plot: no epoch has been trained yet.")
        columns = min(len(panels), _MOST_COLUMNS)
        rows = -(-len(panels) // columns)
        figure = pyplot.figure(
            figsize=(_WIDTH * columns, _HEIGHT * rows), layout="constrained"
        )
        found, epochs = [], self._numbers
        for number, (panel, names) in enumerate(panels.items(), 1):
            axes = figure.add_subplot(rows, columns, number)
            for name in names:
                those = [i for i, row in enumerate(self._rows) if name in row]
                x = [epochs[i] for i in those]
                axes.plot(x, self.history[name], marker=".", label=name)
            axes.set(xlabel="epoch", title=panel)
            axes.legend()
            found.append(axes)
        return found


def print_values(name: str, /, **values: float) -> None:
    """Prints a line such as `eval  loss 1.254  accuracy 0.3672`."""
    shown = [name, *(f"{k} {v:.4g}" for k, v in values.items())]
    sys.stdout.write(f"{'  '.join(shown)}\n")

"""Draws the values of runs over their steps.

Nothing here imports TensorFlow.
"""

import dataclasses
import math
from collections.abc import Sequence

from trainer.errors import UserError

# matplotlib has as many colors.
MOST = 10


@dataclasses.dataclass(frozen=True)
class Curve:
    """A run's line.

    Attributes:
        label: its text in the legend.
        values: by step, `None` for one that was not finite.
        training: the values of the same metric in training, if it is one of
            evaluation.
    """

    label: str
    values: dict[int, float | None]
    training: dict[int, float | None]


def write(
    path: str, metric: str, curves: Sequence[Curve], *, title: str, log: bool
) -> None:
    """Writes a picture of curves.

    Args:
        path: the file, whose suffix is its format, such as `.svg`.
        metric: the name of the values.
        curves: at most `MOST`.
        title: of the legend.
        log: whether both axes are logarithmic.

    Raises:
        UserError: the file cannot be written, or has no logarithmic axes.
    """
    # pyplot would look for a screen.
    from matplotlib import ticker
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), layout="tight")
    axes = figure.add_subplot(xlabel="step", ylabel=metric)
    # The steps of runs are few at times, and always whole.
    axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    if log:
        _require_positive(metric, curves)
        axes.set(xscale="log", yscale="log")
    for number, curve in enumerate(curves):
        # Of runs with equal values each shows beside the ones above it.
        above = sum(curve.values == one.values for one in curves[number + 1 :])
        width = 1.5 + 3 * above
        style = {"color": f"C{number}", "linewidth": width}
        # A single value makes no line, so each has a marker.
        axes.plot(
            *_points(curve.values),
            ".-",
            label=curve.label,
            markersize=5 + width,
            **style,
        )
        axes.plot(*_points(curve.training), ":", **style)
    if any(curve.training for curve in curves):
        axes.set_ylabel(f"{metric} (dotted: in training)")
    axes.grid(alpha=0.3)
    # Two dollar signs in a name would make a formula.
    for text in axes.legend(title=title).get_texts():
        text.set_parse_math(False)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"--plot={path} cannot be written: {why}.") from None


def _points(values: dict[int, float | None]) -> tuple[list[int], list[float]]:
    steps = sorted(values)
    known = (values[step] for step in steps)
    return steps, [math.nan if value is None else value for value in known]


def _require_positive(metric: str, curves: Sequence[Curve]) -> None:
    for curve in curves:
        for values in (curve.values, curve.training):
            known = [value for value in values.values() if value is not None]
            if min([*known, *values], default=1) <= 0:
                raise UserError(
                    f"--log: {metric} of {curve.label} has a step or a value "
                    "that is not above 0."
                )

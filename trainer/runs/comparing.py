"""Puts runs in order, and finds what differs in their configurations."""

import dataclasses
from collections.abc import Sequence

from trainer.errors import UserError, nearest
from trainer.runs.reading import Run
from trainer.runs.series import best
from trainer.values.direction import direction_of

_PREFERRED = ("val_loss", "loss")


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Runs in their order.

    Attributes:
        metric: the value by which they are ordered; `None` if no run has
            logged any.
        mode: `"min"` or `"max"`: which of its values is the best.
        runs: the best first, then those that have diverged, and those without
            a value last.
        differences: by parameter its value in each run, as gin text, empty
            where it has none.
    """

    metric: str | None
    mode: str
    runs: list[Run]
    differences: dict[str, list[str]]

    def best(self, run: Run) -> tuple[int, float] | None:
        """The best step of a run and its value."""
        return best(run.series.get(self.metric or "", {}), self.mode)


def compare(
    runs: Sequence[Run], metric: str | None = None, mode: str = "auto"
) -> Comparison:
    """Compares runs.

    Args:
        runs: at least one.
        metric: as monitors name it, such as `"val_accuracy"`; `None` is
            `"val_loss"`, or `"loss"` where no run has that.
        mode: `"min"`, `"max"`, or `"auto"` to decide by the name.

    Raises:
        UserError: no run has such a value, or its name tells no direction.
    """
    names = {name for run in runs for name in run.series}
    if metric is None:
        metric = next((name for name in _PREFERRED if name in names), None)
        metric = metric or min(names, default=None)
    elif metric not in names:
        raise UserError(
            f"--sort_by={metric}: no run has logged it. "
            f"{nearest(metric, names)}"
        )
    if mode == "auto":
        mode = "min" if metric is None else _direction(metric)
    sign = 1.0 if mode == "min" else -1.0

    def order(run: Run) -> tuple[bool, bool, float, str]:
        found = best(run.series.get(metric or "", {}), mode)
        value = sign * found[1] if found else 0.0
        # A low loss on the way to NaN recommends no configuration.
        return found is None, run.state == "diverged", value, run.name

    ordered = sorted(runs, key=order)
    return Comparison(metric, mode, ordered, differences(ordered))


def _direction(metric: str) -> str:
    try:
        return direction_of(metric)
    except UserError:
        raise UserError(
            f"The name {metric!r} does not tell whether more is better. Give "
            "--mode=min or --mode=max."
        ) from None


def differences(runs: Sequence[Run]) -> dict[str, list[str]]:
    """By parameter its value in each run, where they differ.

    Only what was configured in at least one of them: defaults may differ
    between versions. For a run that did not configure it, it is the default
    that was used.
    """
    # A run without its configuration differs in nothing that is known.
    known = [run for run in runs if run.configuration]
    found = {}
    for name in sorted({name for run in known for name in run.configuration}):
        values = {
            run.name: run.configuration.get(name, run.defaults.get(name, ""))
            for run in known
        }
        if len(set(values.values())) > 1:
            found[name] = [values.get(run.name, "") for run in runs]
    return found

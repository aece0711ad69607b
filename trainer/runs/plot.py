"""A plot of the runs: the values of one metric over the steps."""

import os

from trainer.errors import UserError
from trainer.runs.comparing import Comparison

# More lines than this cannot be told apart.
_MOST = 20


def write_plot(comparison: Comparison, path: str) -> str:
    """Writes a plot of the best runs.

    Args:
        comparison: what to show.
        path: the file; its suffix, such as `.png`, gives the format.

    Returns:
        A sentence that says what is in it.

    Raises:
        UserError: nothing was logged, or the file cannot be written.
    """
    # Without pyplot, which would open windows, or need a screen.
    from matplotlib import ticker
    from matplotlib.figure import Figure

    metric = comparison.metric or ""
    shown = [run for run in comparison.runs if run.series.get(metric)][:_MOST]
    if not shown:
        raise UserError("--plot: no run has logged any values.")
    figure = Figure(figsize=(8, 5), layout="tight")
    axes = figure.add_subplot()
    for run in shown:
        values = run.series[metric]
        steps = sorted(values)
        # A marker, because one value alone makes no line.
        (line,) = axes.plot(
            steps, [values[s] for s in steps], label=run.name, marker=".", ms=4
        )
        best = comparison.best(run)
        if best is not None:
            axes.plot(*best, marker="o", color=line.get_color())
    axes.set_xlabel("step")
    axes.set_ylabel(metric)
    # Steps are whole.
    axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    # Two dollar signs in a name would make a formula.
    for text in axes.legend(fontsize="small").get_texts():
        text.set_parse_math(False)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"--plot={path} cannot be written: {why}.") from None
    left = len(comparison.runs) - len(shown)
    more = f", without {left} others" if left else ""
    return f"{os.path.abspath(path)}: {metric} of {len(shown)} runs{more}."

"""A plot of the table: a bar for each contender, a panel for each model."""

import pathlib
from collections.abc import Mapping
from typing import Any


def write(report: Mapping[str, Any], path: pathlib.Path) -> str:
    """Writes a PNG, if matplotlib is there.

    Args:
        report: as `benchmarks.__main__` writes it.
        path: where.

    Returns:
        A line that says what was done.
    """
    try:
        import matplotlib
    except ModuleNotFoundError:
        return "no plot: matplotlib is not installed (extra `bench`)"
    matplotlib.use("Agg")
    from matplotlib import pyplot

    parts = [part for part in report["speed"].values() if part["rows"]]
    if not parts:
        return "no plot: nothing was measured"
    figure, axes = pyplot.subplots(
        len(parts), 1, figsize=(8, 0.6 + 3.4 * len(parts)), squeeze=False
    )
    for axis, part in zip(axes[:, 0], parts, strict=True):
        found = part["rows"]
        medians = [row["median"] for row in found]
        low = [row["median"] - min(row["steps_per_second"]) for row in found]
        high = [max(row["steps_per_second"]) - row["median"] for row in found]
        colors = [
            "tab:blue" if row["contender"].startswith("trainer") else "tab:gray"
            for row in found
        ]
        axis.barh(
            [row["title"] for row in found],
            medians,
            xerr=(low, high),
            color=colors,
            capsize=3,
        )
        axis.invert_yaxis()
        axis.set_title(part["title"].replace("`", ""))
        axis.set_xlabel("steps per second: median, least and most of a round")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return f"wrote {path}"

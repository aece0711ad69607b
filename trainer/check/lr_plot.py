"""Shows what a learning-rate range test has found: as text, JSON and PNG."""

import io
import json
import os

from absl import logging

from trainer.check.lr_find import Found
from trainer.errors import UserError
from trainer.runtime import atomic_files
from trainer.runtime.charts import require_matplotlib
from trainer.runtime.local_files import plain

_NAME = "lr_find"


def check_plot(path: str) -> None:
    """Checks that `save_plot` can write to a path.

    Raises:
        UserError: matplotlib is not installed, or the name is another.
    """
    if not path.endswith(".png"):
        raise UserError(f"lr_find: plot = {path!r} must end with .png.")
    require_matplotlib("lr_find: plot")


def save_plot(found: Found, path: str) -> None:
    """Writes a PNG."""
    atomic_files.write_whole(path, _png(found))


def write_found(found: Found, model_dir: str | None) -> None:
    """Writes `lr_find.json` and, where matplotlib is, `lr_find.png`.

    Args:
        found: what to write.
        model_dir: the run directory, if one was named; else nothing is
            written.
    """
    if model_dir is None:
        return
    folder = plain(model_dir)
    atomic_files.make_directory(folder)
    content = {
        "suggestion": found.suggestion,
        "why": found.why,
        "learning_rates": found.rates,
        "losses": found.losses,
        "smoothed_losses": found.smoothed,
    }
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    files: dict[str, str | bytes] = {f"{_NAME}.json": text}
    try:
        require_matplotlib(f"{_NAME}.png")
        files[f"{_NAME}.png"] = _png(found)
    except UserError as error:
        logging.warning("%s", error)
    for name, what in files.items():
        atomic_files.refuse_links(folder, name)
        atomic_files.write_whole(os.path.join(folder, name), what)


def _png(found: Found) -> bytes:
    # Without pyplot, which would open windows, or need a screen.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(found.rates, found.losses, color="0.75", label="loss")
    axes.plot(found.rates, found.smoothed, label="smoothed")
    axes.set_xscale("log")
    if found.smoothed:
        # So that what explodes at the end does not hide the rest.
        calm = found.losses[: found.smoothed.index(min(found.smoothed)) + 1]
        margin = 0.05 * (max(calm) - min(calm)) or 1.0
        axes.set_ylim(min(calm) - margin, max(calm) + margin)
    if found.suggestion is not None:
        axes.axvline(
            found.suggestion,
            color="C1",
            linestyle="--",
            label=f"suggestion {found.suggestion:.2g}",
        )
    axes.set_xlabel("learning rate")
    axes.set_ylabel("training loss")
    axes.legend()
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=100)
    return stream.getvalue()

"""What a run is, in one line, and where a model may be saved."""

import os

from trainer.errors import UserError
from trainer.loop.running_trainer import RunningTrainer


def describe(trainer: RunningTrainer) -> str:
    """Strategy, devices, parameters, batch, precision and compiled form."""
    plugin, model = trainer.plugin, trainer.model
    # Without the job and task, which are long and the same for all.
    devices = [d.rpartition("device:")[2].lower() for d in plugin.devices()]
    shown = ", ".join(devices[:4]) + (", ..." if len(devices) > 4 else "")
    micro = trainer.accumulation_steps
    parts = [
        f"strategy {plugin.name} on {shown}",
        f"{model.count_params():,} parameters",
        f"batch {trainer.batch_size}"
        + (f" in {micro} micro-batches" if micro > 1 else ""),
        model.dtype_policy.name,
        "run eagerly"
        if trainer.spec.run_eagerly
        else f"compiled as {trainer.compiled_form}",
    ]
    return " | ".join(parts)


def check_save_path(path: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Checks that a model can be saved at a path.

    Raises:
        UserError: its ending is none that Keras saves in, its directory is
            missing, or there is a file that must stay.
    """
    name = os.fspath(path)
    if not name.endswith((".keras", ".weights.h5")):
        raise UserError(
            f"save: {name!r} must end with .keras, or with .weights.h5 for the "
            "weights alone. The callback Export writes a SavedModel."
        )
    directory = os.path.dirname(name) or "."
    if "://" not in name and not os.path.isdir(directory):
        raise UserError(f"save: there is no directory {directory!r}.")
    if not overwrite and os.path.exists(name):
        raise UserError(f"save: {name!r} exists, and overwrite = False.")

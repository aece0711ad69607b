"""Where a model may be saved."""

import os

from trainer.errors import UserError


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

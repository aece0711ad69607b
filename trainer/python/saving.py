"""Where a model may be saved."""

import os

from trainer.errors import UserError
from trainer.loop.built import Built


def save_model(
    built: Built, path: str | os.PathLike[str], *, overwrite: bool
) -> None:
    """Writes the model, with the averaged weights; only the chief does.

    Raises:
        UserError: the path cannot be written, or Keras cannot save the model.
    """
    name = os.fspath(path)
    _check_path(name, overwrite=overwrite)
    with built.model_to_save() as model:
        if not built.plugin.is_chief:
            return
        if not name.endswith(".keras"):
            model.save_weights(name, overwrite=overwrite)
            return
        try:
            model.save(name, overwrite=overwrite)
        # What Keras raises for a class that it cannot serialize.
        except (NotImplementedError, TypeError) as error:
            raise UserError(
                f"Keras cannot save a {type(model).__name__} as .keras "
                f"({type(error).__name__}). Give the class a get_config "
                "that returns its constructor's arguments, or save the "
                "weights alone: save('model.weights.h5')."
            ) from None


def _check_path(name: str, *, overwrite: bool) -> None:
    """Checks that a model can be saved at a path.

    Raises:
        UserError: its ending is none that Keras saves in, its directory is
            missing, or there is a file that must stay.
    """
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

"""The callback Export: writes a SavedModel and a .keras file."""

import os
import tempfile
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

import keras
import tensorflow as tf
from absl import logging
from annotated_types import MinLen
from typing_extensions import Doc

from trainer import Callback, UserError
from trainer.plugin_api import configurable, files, run_paths

Format: TypeAlias = Literal["saved_model", "keras"]
FORMATS: tuple[Format, ...] = ("saved_model", "keras")
Formats: TypeAlias = Annotated[
    Format | Annotated[Sequence[Format], MinLen(1)],
    Doc("'saved_model', 'keras' or a list of these"),
]


@configurable(module="trainer_plugins.callbacks")
class Export(Callback):
    """Writes the model to `export/` in the run directory when training ends.

    The model is built outside of any strategy, with the averaged weights if
    there are any. Each file or folder is written under a temporary name and
    then renamed, so that a reader finds it complete or not at all. On object
    stores such as gs://, where a folder is moved file by file, `saved_model.pb`
    goes first and comes last. A model that cannot be saved as `.keras` is only
    logged as a warning.

    Args:
        formats: any of `"saved_model"` (`export/saved_model`, for serving with
            any batch size) and `"keras"` (`export/model.keras`, for use in
            Python).

    Raises:
        UserError: there is no such format.
    """

    single = True

    def __init__(self, formats: Formats = FORMATS) -> None:
        super().__init__()
        self.formats = [formats] if isinstance(formats, str) else formats

    def setup(self) -> None:
        """Refuses to write through a link.

        Raises:
            UserError: `export/` is a link.
        """
        if self.run.model_dir is not None:
            run_paths.refuse_links(self.run.model_dir, "export")

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Exports the trained model.

        Raises:
            UserError: it cannot be written.
        """
        try:
            with files.os_errors():
                self.export()
        except OSError as error:
            raise UserError(
                f"The export could not be written: {error}. Training is done; "
                "make room, then export with --mode=export."
            ) from None

    def export(self) -> list[str]:
        """Exports the current model, if this process is the chief.

        Returns:
            The paths that were written.
        """
        run = self.run
        if run.model_dir is None or not run.plugin.is_chief:
            return []
        # Again: `setup` is not called with --mode=export, and in a long run a
        # link may have been made since.
        run_paths.refuse_links(run.model_dir, "export")
        directory = os.path.join(run.model_dir, "export")
        files.make_directory(directory)
        written: list[str | None] = []
        with run.built.model_to_save() as model:
            if "saved_model" in self.formats:
                inputs = self._inputs(model)
                written.append(_write_saved_model(model, directory, inputs))
            if "keras" in self.formats:
                written.append(_write_keras(model, directory))
        found = [path for path in written if path is not None]
        logging.info("Exported %s", ", ".join(found))
        return found

    def _inputs(self, model: keras.Model) -> Any:
        """Returns the data's specs if the model does not declare its inputs."""
        if _declares_inputs(model):
            return None
        try:
            batches = self.run.batches("train")
        except (UserError, OSError):
            # The data may be missing where only a checkpoint was copied to.
            # Then Keras has to guess.
            return None
        x, _, _ = keras.utils.unpack_x_y_sample_weight(batches.element_spec)
        # `keras.InputSpec` cannot describe a sparse part.
        dense = all(isinstance(s, tf.TensorSpec) for s in tf.nest.flatten(x))
        return x if dense else None


def _write_saved_model(model: keras.Model, directory: str, inputs: Any) -> str:
    path = os.path.join(directory, "saved_model")
    beside = f"{path}.new"
    # An export that was killed left them, and renaming onto a folder that is
    # not empty fails.
    for left_over in (beside, f"{path}.old"):
        files.remove(left_over)
    signature = None if inputs is None else [_free_batch(inputs)]
    model.export(
        beside,
        format="tf_saved_model",
        verbose=False,
        input_signature=signature,
    )
    files.replace_directory(beside, path, last="saved_model.pb")
    return path


def _write_keras(model: keras.Model, directory: str) -> str | None:
    path = os.path.join(directory, "model.keras")
    beside = f"{path}.new"
    with tempfile.TemporaryDirectory() as local:
        # Keras requires the suffix, and writes local files only.
        file = os.path.join(local, "model.keras")
        try:
            model.save(file)
        # What Keras raises for a class that it cannot serialize.
        except (NotImplementedError, TypeError, ValueError) as error:
            logging.warning(
                "%s cannot be saved as .keras (%s). Give the class a "
                "get_config that returns its constructor's arguments, or set "
                "Export.formats = ['saved_model'].",
                type(model).__name__,
                str(error).strip().split("\n")[0],
            )
            return None
        # A previous attempt may have left one.
        files.remove(beside)
        tf.io.gfile.copy(file, beside)
    files.synchronize(beside)
    tf.io.gfile.rename(beside, path, overwrite=True)
    files.synchronize(directory)
    return path


def _declares_inputs(model: keras.Model) -> bool:
    """Whether the model was built from `keras.Input`, with data types."""
    sequential = isinstance(model, keras.Sequential)
    return bool(getattr(model, "inputs", None)) and not sequential


def _free_batch(inputs: Any) -> Any:
    return tf.nest.map_structure(
        lambda spec: keras.InputSpec(
            shape=(None, *spec.shape[1:]), dtype=spec.dtype.name
        ),
        inputs,
    )

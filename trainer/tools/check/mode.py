"""`Check`: tries a run before it is one, and reports."""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import keras
from absl import logging
from rich.console import Console
from rich.text import Text

from trainer.checkpoint import storage
from trainer.cli import run_dir
from trainer.errors import UserError
from trainer.loop import rollback
from trainer.loop.loop import Loop
from trainer.loop.run import Run
from trainer.runtime import files
from trainer.runtime.report import Row, Section, as_json, as_text, not_finite
from trainer.runtime.run_paths import plain, refuse_links
from trainer.runtime.standard_streams import require_output
from trainer.tools.check.rehearsal import rehearse

FILE_NAME = "check.json"
# Keras' callbacks that write, and the attribute that says where.
_WRITERS = (
    (keras.callbacks.ModelCheckpoint, "filepath"),
    (keras.callbacks.CSVLogger, "filename"),
    (keras.callbacks.TensorBoard, "log_dir"),
)


class Check:
    """The work of a run in this mode; see `trainer.experiment.Tool`.

    Attributes:
        sections: what was found.
    """

    def __init__(self) -> None:
        self.sections: list[Section] = []

    @contextlib.contextmanager
    def folder(
        self, model_dir: str, callbacks: Sequence[keras.callbacks.Callback]
    ) -> Iterator[str]:
        """Makes a folder that a run starts from as from its own.

        Keras' own callbacks write there, too, and not where they were told.

        Args:
            model_dir: the run directory, which is only read; it need not exist.
            callbacks: of the run.

        Yields:
            The folder's path; it is removed at the end. In the message of a
            `UserError` that leaves the context, it is the run directory's.
        """
        with tempfile.TemporaryDirectory(prefix="trainer-check-") as folder:
            # What a run reads at its start.
            path = os.path.join(model_dir, rollback.FILE_NAME)
            if files.exists(path):
                copy = os.path.join(folder, rollback.FILE_NAME)
                files.write_whole(copy, files.read(path))
            newest = storage.load_newest(os.path.join(model_dir, "checkpoints"))
            if newest is not None:
                storage.save(os.path.join(folder, "checkpoints"), newest)
            place = os.path.join(folder, "keras")
            os.mkdir(place)
            for callback in callbacks:
                for kind, attribute in _WRITERS:
                    if isinstance(callback, kind):
                        path = os.fspath(getattr(callback, attribute))
                        name = os.path.basename(os.path.normpath(path))
                        setattr(callback, attribute, os.path.join(place, name))
            try:
                yield folder
            except UserError as error:
                error.args = tuple(
                    one.replace(folder, model_dir) if type(one) is str else one
                    for one in error.args
                )
                raise

    def run(self, run: Run, loop: Loop, folder: str) -> dict[str, float]:
        """Tries a run that is `ready`."""
        self.sections = rehearse(run, loop, folder=folder)
        return {
            "parameters": float(run.model.count_params()),
            "train_steps": float(loop.steps),
        }

    def report(self, unused: list[str], model_dir: str | None) -> None:
        """Prints the report of a run that would start, and writes it.

        Args:
            unused: bindings without an effect.
            model_dir: the run directory if one was named; it gets
                `check.json`, and nothing else.
        """
        rows = [Row("would start", True), Row("unused bindings", len(unused))]
        notes = [*unused, *not_finite(self.sections)]
        found = [Section("verdict", rows, notes=notes), *self.sections]
        _print(as_text(found))
        require_output()
        if model_dir is not None:
            _write(model_dir, {"would_start": True, **as_json(found)})

    def failed(self, why: str, model_dir: str | None) -> None:
        """Says that the run would not start; records it, as `report` does."""
        _print("would start  no")
        if model_dir is None:
            return
        try:
            _write(model_dir, {"would_start": False, "error": why})
        except (UserError, OSError) as error:
            # It must not hide what the check has found.
            logging.warning("%s cannot be written: %s", FILE_NAME, error)


def _print(text: str) -> None:
    """Prints a report; on a terminal, titles and the verdict stand out."""
    shown = Text(text)
    shown.highlight_regex(r"(?m)^\w.*$", "bold")
    shown.highlight_regex(r"would start +yes", "bold green")
    shown.highlight_regex(r"would start +no", "bold red")
    Console().print(shown, soft_wrap=True)


def _write(model_dir: str, found: dict[str, Any]) -> None:
    path = plain(model_dir)
    files.make_directory(path)
    refuse_links(path, FILE_NAME)
    record = {"checked": run_dir.now(), **found}
    files.write_json(os.path.join(path, FILE_NAME), record)

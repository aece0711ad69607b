"""A callback that shows in TensorBoard what a model makes."""

import abc
import os

import keras
import tensorflow as tf

from trainer import Callback


class EvalSummaries(Callback, abc.ABC):
    """Writes to the evaluation's part of TensorBoard at each evaluation.

    In the same folder as the callback TensorBoard, which hides what a killed
    run has written for steps that are repeated.
    """

    single = True

    def on_log(self, step: int, split: str, logs: dict[str, float]) -> None:
        """Writes, on the chief, once the eval split has been measured."""
        directory = self.trainer.model_dir
        if split != "eval" or directory is None:
            return
        if not self.trainer.plugin.is_chief:
            return
        path = os.path.join(directory, "tensorboard", "eval")
        writer = tf.summary.create_file_writer(path, filename_suffix=".made")
        with writer.as_default(step=step):
            self.write(self.trainer.model)
        writer.close()

    @abc.abstractmethod
    def write(self, model: keras.Model) -> None:
        """Calls `tf.summary`; the step is set."""

"""Distillation: a small network learns from a large one that is frozen."""

from typing import Annotated, Any

import keras
import tensorflow as tf
from annotated_types import Ge, Gt, Le

from trainer import Trainer, UserError
from trainer.plugin_api import Text, configurable
from trainer_experiments.models import ImageShape, Width


@configurable(module="experiments")
class Distillation(Trainer):
    """Matches the student's outputs with those of the teacher.

    "Distilling the Knowledge in a Neural Network" (G. Hinton, O. Vinyals and
    J. Dean, 2015).

    Args:
        temperature: divides the logits of both.
        label_weight: of the loss that compares the student with the labels;
            with 0, it sees none.
        **kwargs: see `trainer.Trainer`.
    """

    def __init__(
        self,
        *,
        temperature: Annotated[float, Gt(0), Le(1e3)] = 4.0,
        label_weight: Annotated[float, Ge(0), Le(1)] = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.temperature = temperature
        self.label_weight = label_weight

    def per_example_loss(self, x: Any, y: Any, y_pred: Any) -> Any:
        """See `Trainer.per_example_loss`."""
        student, teacher = y_pred["student"], y_pred["teacher"]
        soft = tf.nn.softmax_cross_entropy_with_logits(
            tf.nn.softmax(teacher / self.temperature),
            student / self.temperature,
        )
        hard = tf.nn.sparse_softmax_cross_entropy_with_logits(y, student)
        # The gradient of the first shrinks with the temperature's square.
        soft *= self.temperature**2
        return (1 - self.label_weight) * soft + self.label_weight * hard


@configurable(module="experiments")
def student_and_teacher(
    *,
    teacher: Text,
    input_shape: ImageShape = (8, 8, 1),
    units: Width = 24,
    num_classes: Width = 10,
) -> keras.Model:
    """A small dense network beside a trained one.

    Args:
        teacher: the `.keras` file of a model that returns logits, such as
            `export/model.keras` of a run with the callback Export.
        input_shape: height, width and channels of an image.
        units: of the student's hidden layer.
        num_classes: the number of logits.

    Returns:
        A model from images to the logits of `student` and `teacher`. Only the
        student is trained.

    Raises:
        UserError: there is no such file.
    """
    if not tf.io.gfile.exists(teacher):
        raise UserError(
            f"student_and_teacher.teacher = {teacher!r} does not exist. Train "
            "one: python -m trainer --gin_file=experiments/digits.gin "
            "--model_dir=runs/teacher"
        )
    frozen = keras.saving.load_model(teacher, compile=False)
    frozen.trainable = False
    student = keras.Sequential(
        [
            keras.Input(tuple(input_shape)),
            keras.layers.Flatten(),
            keras.layers.Dense(units, activation="relu"),
            keras.layers.Dense(num_classes, dtype="float32"),
        ],
        name="student",
    )
    images = keras.Input(tuple(input_shape))
    outputs = {
        "student": student(images),
        # As it is in use: without dropout, and with kept batch statistics.
        "teacher": frozen(images, training=False),
    }
    return keras.Model(images, outputs, name="distillation")

"""What is said of failures in the user's own code."""

import json

import pytest

from tests.sets import one_in
from tests.trainer.cli.tiny import TINY, run_trainer

# What must not be seen of the machinery in between.
MACHINERY = ("gin/", "keras/src", "tensorflow/", "/trainer/", "autograph")
CODE = """
import sys

import gin
import keras
import numpy as np
import tensorflow as tf

import trainer


def helper(x):
    raise ValueError("no good")


@gin.configurable
def bad_model():
    return helper(1)


@gin.configurable
def bad_keras_model():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(-3)])


class BadLayer(keras.layers.Layer):
    def call(self, x):
        return helper(x)


@gin.configurable
def bad_layer():
    return keras.Sequential([keras.Input((4,)), BadLayer()])


@gin.configurable
def bad_data(split):
    return helper(split)


@gin.configurable
def bad_generator(split, batch_size):
    def examples():
        yield np.zeros(4, "float32"), np.zeros(1, "float32")
        helper(1)

    kinds = tf.TensorSpec([4]), tf.TensorSpec([1])
    made = tf.data.Dataset.from_generator(examples, output_signature=kinds)
    made = made.apply(tf.data.experimental.assert_cardinality(64))
    return made.repeat().take(64).batch(batch_size)


@gin.configurable
def bad_loss(y, y_pred):
    return helper(y)


@gin.configurable
class BadMetric(keras.metrics.Mean):
    def update_state(self, y, y_pred, sample_weight=None):
        return helper(y)


@gin.configurable
class BadCallback(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        helper(1)


@gin.configurable
class BadTrainer(trainer.Trainer):
    def per_example_loss(self, x, y, y_pred):
        return helper(x)


@gin.configurable
class BadOperation(trainer.Trainer):
    def forward(self, x, *, training):
        x = super().forward(x, training=training)
        large = tf.reduce_max(tf.abs(x)) >= 0 if training else False
        with tf.control_dependencies([tf.Assert(not large, ["too large"])]):
            return tf.identity(x)


@gin.configurable
class Chained(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        try:
            helper(1)
        except ValueError as error:
            raise KeyError("outer") from error


@gin.configurable
class Exits(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        sys.exit(0)


@gin.configurable
def exits():
    exit()
"""


def fails(tmp_path, text, *arguments, code=CODE):
    (tmp_path / "own_code.py").write_text(code)
    done = run_trainer(
        tmp_path,
        "--model_dir=run",
        *arguments,
        text=f"import own_code\n{TINY}{text}\n",
    )
    assert done.returncode == 1, done.stderr
    lines = [
        line
        for line in done.stderr.splitlines()
        if "warning" not in line.lower()
    ]
    assert lines[0].startswith("error: your "), done.stderr
    return lines


@pytest.mark.parametrize(
    ("text", "function", "purpose", "in_helper"),
    one_in(
        3,
        [
            ("Trainer.model = @bad_model", "bad_model", "Trainer.model", True),
            (
                "Trainer.model = @bad_keras_model",
                "bad_keras_model",
                "Trainer.model",
                False,
            ),
            ("Trainer.model = @bad_layer", "bad_layer", "Trainer.model", True),
            ("Trainer.data = @bad_data", "bad_data", "Trainer.data", True),
            ("Trainer.data = @bad_generator", "examples", "", True),
            ("Trainer.loss = @bad_loss", "bad_loss", "", True),
            ("Trainer.metrics = [@BadMetric]", "update_state", "", True),
            (
                "run.callbacks = [@BadCallback()]",
                "on_train_batch_end",
                "a callback",
                True,
            ),
            ("run.trainer = @BadTrainer", "per_example_loss", "", True),
            ("run.trainer = @BadOperation", "forward", "a step", False),
        ],
    ),
)
def test_one_sentence_and_the_users_frames(
    tmp_path, text, function, purpose, in_helper
):
    first, *rest = fails(tmp_path, text)
    assert f"function {function}" in first
    assert purpose in first
    assert "own_code.py, line" in first
    shown = "\n".join(rest)
    assert rest[0].startswith("Traceback")
    assert ("in helper" in shown) == in_helper
    assert not any(part in shown for part in MACHINERY), shown
    assert len(rest) < 16, shown
    if in_helper:
        assert rest[-1].endswith("no good")


def test_an_import_that_fails(tmp_path):
    first, *rest = fails(tmp_path, "", code="x = 1\n\nprint(y)\n")
    assert "module own_code.py" in first
    assert "tiny.gin, line 1" in first
    assert rest[-1] == "NameError: name 'y' is not defined"
    assert "line 3, in <module>" in rest[1]


def test_an_import_with_a_syntax_error(tmp_path):
    lines = fails(tmp_path, "", code="x = 1\n\ndef f(:\n")
    assert any("own_code.py" in line and "line 3" in line for line in lines)
    assert lines[-1].startswith("SyntaxError")


def test_what_an_exception_was_raised_from(tmp_path):
    lines = fails(tmp_path, "run.callbacks = [@Chained()]")
    assert lines.index("ValueError: no good") < lines.index("KeyError: 'outer'")


def test_verbosity_shows_all_frames(tmp_path):
    (tmp_path / "own_code.py").write_text(CODE)
    done = run_trainer(
        tmp_path,
        "--verbosity=1",
        text=f"import own_code\n{TINY}Trainer.model = @bad_model\n",
    )
    assert done.returncode == 1
    assert "/trainer/strategy/build.py" in done.stderr


@pytest.mark.parametrize("number", one_in(2, [0, 2, 75]))
def test_an_import_that_exits(tmp_path, number):
    code = f"import sys\nsys.exit({number})\n"
    (line,) = fails(tmp_path, "", code=code)
    assert f"sys.exit({number})" in line
    assert "module own_code.py" in line
    assert "own_code.py, line 2" in line


@pytest.mark.parametrize(
    ("text", "function"),
    one_in(
        2,
        [
            (
                "run.callbacks = [@Exits()]\nrun.steps_per_loop = None",
                "on_train_batch_end",
            ),
            ("Trainer.model = @exits", "exits"),
        ],
    ),
)
def test_an_exit_does_not_end_a_run(tmp_path, text, function):
    (line,) = fails(tmp_path, text)
    assert f"function {function}" in line
    if function == "on_train_batch_end":
        record = json.loads((tmp_path / "run" / "run.json").read_text())
        assert record["exit_reason"] == "error"
        assert record["exit_message"] == "SystemExit: 0"

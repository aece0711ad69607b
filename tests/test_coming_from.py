"""The code in the tables of docs/coming_from runs."""

import re
import shlex

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import ROOT
from trainer import Callback, Guard, Trainer, WholeSetMetric
from trainer.cli import flags
from trainer_plugins import (
    CSV,
    Checkpoint,
    EarlyStopping,
    JsonLines,
    TensorBoard,
)

PAGES = sorted((ROOT / "docs" / "coming_from").glob("*.md"))
# The code that a cell begins with, before its remark.
CODE = re.compile(r"`([^`]+)`(?:<br>.*)?")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 4)).astype("float32")
Y = RNG.integers(3, size=64)
HOT = keras.utils.to_categorical(Y, 3)


class Pairs(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, number):
        part = slice(16 * number, 16 * number + 16)
        return X[part], Y[part]


class CollectLosses(keras.callbacks.Callback):
    def on_test_batch_end(self, batch, logs=None):
        assert "loss" in logs


def spread(y, y_pred):
    return np.ptp(y_pred)


class Samples(Callback):
    """One's own."""


def rows():
    """The cells of all tables, and the page that they are of."""
    return [
        (page.stem, *map(str.strip, line.split("|")[1:-1]))
        for page in PAGES
        for line in page.read_text().splitlines()
        if line.startswith("| ") and not line.startswith("| There")
    ]


def code_of(row):
    match = CODE.fullmatch(row[2])
    return match and match[1]


def make_model():
    return keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(3, "softmax")]
    )


GIVEN = {
    "model": make_model,
    "loss": "sparse_categorical_crossentropy",
    "metrics": ["accuracy"],
    "data": {"train": (X, Y), "eval": (X[:20], Y[:20]), "test": (X, Y)},
    "batch_size": 16,
    "strategy": "default",
}
CODES = [(row, code_of(row)) for row in rows() if code_of(row)]
FLAGS = [row for row, code in CODES if code.startswith("--")]
OF_A_TRAINER = [row for row, code in CODES if code.startswith("Trainer(")]
CALLS = [row for row, _ in CODES if row not in (*FLAGS, *OF_A_TRAINER)]


def run(code):
    """Evaluates the code of a cell; a Trainer that it makes is built."""
    names = {
        **{one.__name__: one for one in (Guard, WholeSetMetric, Checkpoint)},
        **{one.__name__: one for one in (TensorBoard, CSV, JsonLines)},
        **{one.__name__: one for one in (EarlyStopping, Pairs, Samples)},
        **{"x": X, "y": Y, "x_val": X, "y_val": Y, "hot": HOT},
        **{"w": np.ones(64, "float32"), "keras": keras, "tf": tf},
        **{"CollectLosses": CollectLosses, "spread": spread},
        **{"Trainer": Trainer, "make_model": make_model},
    }
    if code.startswith("Trainer(..., "):
        names["Trainer"] = lambda **more: Trainer(**{**GIVEN, **more})
    elif not code.startswith("Trainer("):
        names["trainer"] = Trainer(**GIVEN)
    made = eval(code.replace("(..., ", "("), names)
    if isinstance(made, Trainer):
        made.build()
    return made


def label(row):
    return f"{row[0]}: {row[1]}"


def test_every_row_answers():
    assert len(rows()) > 180
    for row in rows():
        assert len(row) == 3, row
        assert all(row), row
    assert len({label(row) for row in rows()}) == len(rows())


@pytest.mark.parametrize("row", OF_A_TRAINER, ids=label)
def test_what_a_trainer_takes(row):
    made = run(code_of(row))
    # What was asked for is there, and no default in its place.
    for name, value in re.findall(r"(\w+)=(\"\w+\"|\d+|True)", code_of(row)):
        found = getattr(made, name, None)
        if isinstance(found, int | str):
            assert found == eval(value)
    if "strategy=" in code_of(row):
        assert made.plugin.name in ("default", "mirrored", "one_device")


@pytest.mark.long
@pytest.mark.parametrize("row", CALLS, ids=label)
def test_calls_run(row, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        run(code_of(row))
    finally:
        tf.debugging.disable_check_numerics()
        tf.config.experimental.enable_tensor_float_32_execution(True)


@pytest.mark.parametrize("row", FLAGS, ids=label)
def test_flags_are_known(row):
    given = ["--gin_file=experiments/digits.gin", "--model_dir=run"]
    flags.parse([*given, *shlex.split(code_of(row))])

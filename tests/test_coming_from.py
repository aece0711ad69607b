"""Each row of docs/coming_from.md runs."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import ROOT
from trainer import Guard, Trainer, WholeSetMetric
from trainer_plugins import CSV, Checkpoint, JsonLines, TensorBoard

PAGE = ROOT / "docs" / "coming_from.md"
CODE = re.compile(r"`([^`]+)`")
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


def rows():
    found = []
    section = None
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            section = line[3:]
        elif line.startswith("| ") and not line.startswith("| There"):
            found.append((section, *map(str.strip, line.split("|")[1:4])))
    return found


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
PYTHON = [r for r in rows() if code_of(r) and not code_of(r).startswith("--")]
OF_A_TRAINER = [r for r in PYTHON if code_of(r).startswith("Trainer(...")]


def run(code):
    """Evaluates a row's code; a Trainer that it makes trains a step."""
    names = {
        **{"Trainer": lambda **more: Trainer(**{**GIVEN, **more})},
        **{"x": X, "y": Y, "x_val": X, "y_val": Y, "hot": HOT},
        **{"w": np.ones(64, "float32"), "keras": keras, "tf": tf},
        **{"Checkpoint": Checkpoint, "TensorBoard": TensorBoard},
        **{"CSV": CSV},
        **{"JsonLines": JsonLines, "Guard": Guard, "Pairs": Pairs},
        **{"WholeSetMetric": WholeSetMetric, "spread": spread},
        **{"CollectLosses": CollectLosses},
    }
    if not code.startswith("Trainer("):
        names["trainer"] = Trainer(**GIVEN)
    made = eval(code.replace("(..., ", "("), names)
    if isinstance(made, Trainer):
        made.build()
        return made
    return made


def label(row):
    return f"{row[0]}: {row[1]}"


def test_no_row_is_empty():
    assert len(rows()) > 180
    for row in rows():
        assert code_of(row) or row[3], label(row)
        assert row[1], row
    assert len({label(row) for row in rows()}) == len(rows())


@pytest.mark.parametrize(
    "row",
    [r for r in OF_A_TRAINER if "optimizer=lambda" not in r[2]],
    ids=label,
)
def test_what_a_trainer_takes(row):
    made = run(code_of(row))
    # What was asked for is there, and no default in its place.
    for name, value in re.findall(r"(\w+)=(\"\w+\"|\d+|True)", code_of(row)):
        found = getattr(made, name, None)
        if isinstance(found, int | str):
            assert found == eval(value)
    if "strategy=" in code_of(row):
        assert made.plugin.name in ("default", "mirrored", "one_device")

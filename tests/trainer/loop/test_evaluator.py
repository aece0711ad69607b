"""Evaluations of the same and of other data, one after the other."""

import keras
import numpy as np
import pytest

from trainer import ArrayExamples, Trainer

X = np.arange(24, dtype="float32").reshape(6, 4)


def test_the_input_is_traced_once_and_read_from_its_begin():
    traces = []

    def half(x, y):
        traces.append(x)
        return x / 2, y

    def data(split):
        return ArrayExamples((X, X[:, :1]), transform=half)

    trainer = Trainer(
        lambda: keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]),
        loss="mse",
        data=data,
        batch_size=4,
    )
    first = trainer.evaluate()
    count = len(traces)
    # The second one, of a part, ends within a pass.
    part = trainer.evaluate(steps=1)
    assert trainer.evaluate() == first != part
    assert len(traces) == count
    weights = trainer.model.get_weights()
    wanted = np.mean((X / 2 @ weights[0] + weights[1] - X[:, :1]) ** 2)
    assert first["loss"] == pytest.approx(wanted, rel=1e-5)
    # Other data is not mistaken for it.
    other = trainer.evaluate(X, X[:, :1])
    wanted = np.mean((X @ weights[0] + weights[1] - X[:, :1]) ** 2)
    assert other["loss"] == pytest.approx(wanted, rel=1e-5)
    doubled = trainer.evaluate(2 * X, X[:, :1])
    assert (
        doubled["loss"] > other["loss"] == trainer.evaluate(X, X[:, :1])["loss"]
    )

"""Metrics over a whole evaluation set, against NumPy."""

import keras
import numpy as np
import pytest

from tests.conformance import running
from tests.trainer.step.metrics.whole_set_cases import (
    DATA,
    X,
    in_order,
    make,
    wanted,
)
from trainer import Trainer, UserError, WholeSetMetric
from trainer_plugins import EarlyStopping


def test_values_are_those_of_numpy():
    trainer = make()
    found = trainer.evaluate()
    assert set(found) > {"loss", "mae", "rank_correlation", "in_order"}
    # The set may have an own size, and be cut anywhere.
    for split in ("eval", "rare"):
        found = trainer.evaluate(split=split)
        for name, value in wanted(trainer, split).items():
            assert found[name] == pytest.approx(value, rel=1e-5), name
    part = trainer.evaluate(steps=1)["in_order"]
    y_pred = trainer.predict(X[DATA["eval"]][:8])
    y = trainer.batches("eval").arrays[1][:8]
    assert part == pytest.approx(in_order(y, y_pred), rel=1e-5)
    # In evaluations only: no training step gathers anything.
    values = trainer.train(2, verbose=0)
    assert {"mae", "loss"} <= set(values)
    assert not any("order" in name or "rank" in name for name in values)


def test_what_cannot_be_measured_is_refused():
    def one(y):
        return 0.0

    with pytest.raises(UserError, match="one cannot be called with y and"):
        WholeSetMetric(one)
    with pytest.raises(UserError, match="use those of trainer.Trainer"):
        WholeSetMetric(in_order).update_state(None, None)
    trainer = make(weighted=True, metrics=[WholeSetMetric(in_order)])
    with pytest.raises(UserError, match="sample weights, which the function"):
        trainer.train_and_evaluate(1)
    trainer = make(metrics=[WholeSetMetric(lambda y, y_pred: {}, name="all")])
    with pytest.raises(UserError, match="'all' returned a dict. Return a num"):
        trainer.evaluate()
    # It is no training value.
    with pytest.raises(UserError, match=r"Did you mean 'val_in_order'\?"):
        make(metrics=[WholeSetMetric(in_order)]).train_and_evaluate(
            1, callbacks=[EarlyStopping("in_order", mode="min")]
        )


@pytest.mark.long
def test_a_mask_reaches_the_function_as_weights():
    ids = np.array([[1, 2, 0], [3, 0, 0], [1, 1, 1]])
    y = np.arange(9, dtype="float32").reshape(3, 3, 1)

    def model():
        return keras.Sequential(
            [
                keras.Input((3,), dtype="int32"),
                keras.layers.Embedding(4, 2, mask_zero=True),
                keras.layers.Dense(1),
            ]
        )

    def kept(y, y_pred, sample_weight):
        return np.sum(y[..., 0] * sample_weight)

    options = {"loss": "mse", "data": (ids, y), "strategy": "default"}
    trainer = Trainer(model, metrics=[WholeSetMetric(kept)], **options)
    assert trainer.evaluate(split="train")["kept"] == np.sum(
        y[..., 0] * (ids != 0)
    )
    trainer = Trainer(model, metrics=[WholeSetMetric(in_order)], **options)
    with pytest.raises(UserError, match="outputs have a mask"):
        trainer.evaluate(split="train")


@pytest.mark.long
@pytest.mark.parametrize(
    "strategy",
    [
        "default",
        "one_device",
        "mirrored:2",
        "mirrored:3",
        "central_storage:2",
        "multi_worker_mirrored@2",
        "parameter_server@1+1",
    ],
)
def test_under_every_strategy(strategy, tmp_path):
    where = "tests.trainer.step.metrics.whole_set_cases:run"
    results = running.run(strategy, str(tmp_path), f"--extra={where}")
    names = [k.removeprefix("wanted.") for k in results if "wanted." in k]
    assert len(names) == 12
    for name in names:
        expected = results[f"wanted.{name}"]
        got = results[f"found.{name}"]
        # The rounding of float32 outputs.
        assert got == pytest.approx(expected, rel=1e-5, abs=1e-5), name

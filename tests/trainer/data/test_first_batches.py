"""`overfit_batches` and `limit_eval`: less data, and it is said how much."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl import logging

from tests.helpers import ARRAYS, assert_same, linear, make_trainer
from tests.sets import ordinary
from tests.trainer.cli.tiny import TINY, run_trainer
from trainer import UserError

X, Y = ARRAYS


def shuffled():
    rows = tf.data.Dataset.from_tensor_slices((X, Y))
    return rows.shuffle(64, reshuffle_each_iteration=True).batch(8)


def as_numpy(batches, count):
    taken = batches.whole(0).take(count).as_numpy_iterator()
    return [x for x, _ in taken]


@pytest.mark.parametrize("data", [lambda split: (X, Y), {"train": shuffled()}])
def test_the_same_batches_again_and_again(data):
    trainer = make_trainer(linear, data=data, overfit_batches=2)
    batches = trainer.batches("train")
    assert trainer.batches("eval") is batches
    assert batches.steps_per_epoch == 2
    found = as_numpy(batches, 6)
    for later in (2, 4):
        assert_same(found[later : later + 2], found[:2])
    if callable(data):
        assert_same(found[:2], [X[:8], X[8:16]])
    # Another iterator begins with the same ones.
    assert_same(as_numpy(batches, 2), found[:2])


@pytest.mark.long
def test_it_trains_on_them_as_keras_does():
    trainer = make_trainer(
        linear, overfit_batches=2, optimizer="sgd", learning_rate=0.1
    )
    trainer.build()
    model = linear()
    model.set_weights(trainer.model.get_weights())
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(X[:16], Y[:16], batch_size=8, epochs=3, shuffle=False, verbose=0)
    values = trainer.train_and_evaluate("3 epochs", verbose=0)
    for own, its in zip(
        trainer.model.get_weights(), model.get_weights(), strict=True
    ):
        np.testing.assert_allclose(own, its, rtol=1e-5)
    expected = model.evaluate(X[:16], Y[:16], verbose=0)
    assert values["val_loss"] == pytest.approx(expected, rel=1e-5)


def test_more_batches_than_there_are():
    with pytest.raises(UserError, match="has 8 batches. Choose at most 8"):
        make_trainer(linear, overfit_batches=9).batches("train")
    # All of them, of which the last one is short.
    short = make_trainer(linear, batch_size=10, overfit_batches=7)
    sizes = [len(x) for x in as_numpy(short.batches("train"), 8)]
    assert sizes == [10] * 6 + [4, 10]


@pytest.mark.parametrize(
    ("limit", "examples"),
    ordinary(
        [(3, 24), (0.5, 32), (0.01, 8), (1.0, None), (8, None)], [(0.5, 32)]
    ),
)
def test_limit_eval(limit, examples, monkeypatch):
    said = []
    monkeypatch.setattr(
        logging, "warning", lambda text, *values: said.append(text % values)
    )
    trainer = make_trainer(linear)
    values = trainer.train_and_evaluate(1, limit_eval=limit, verbose=0)
    if examples is None:
        assert "val_examples" not in values
        assert not said
        return
    assert values["val_examples"] == examples
    expected = trainer.evaluate(X[:examples], Y[:examples])["loss"]
    assert values["val_loss"] == pytest.approx(expected, rel=1e-6)
    assert f"of 8 batches ({examples} examples)" in said[0]


def test_limits_that_contradict_each_other():
    with pytest.raises(UserError, match="give one of them"):
        make_trainer(linear).train_and_evaluate(1, limit_eval=2, eval_steps=2)
    with pytest.raises(UserError, match="limit_eval"):
        make_trainer(linear).train_and_evaluate(1, limit_eval=1.5)


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["mirrored", "central_storage"])
def test_other_strategies_take_the_same_batches(strategy):
    found = [
        make_trainer(
            linear, strategy=one, overfit_batches=3, batch_size=7
        ).train_and_evaluate(9, verbose=0)
        for one in ("default", strategy)
    ]
    assert found[0]["val_loss"] == pytest.approx(found[1]["val_loss"])


@pytest.mark.long
def test_on_the_command_line(tmp_path):
    done = run_trainer(
        tmp_path,
        *("--overfit_batches=2", "--limit_eval=1", "--model_dir=run"),
        text=TINY + "run.callbacks = [@Checkpoint()]\n",
    )
    assert done.returncode == 0, done.stderr
    assert "first 2 of 4 batches of the training data (32 ex" in done.stderr
    assert "first 1 of 2 batches (16 examples)" in done.stderr
    done = run_trainer(
        tmp_path, "--mode=eval", "--limit_eval=0.5", "--model_dir=run"
    )
    assert done.returncode == 0, done.stderr
    assert "examples: 32" in done.stdout
    done = run_trainer(tmp_path, "--limit_eval=half")
    assert done.returncode == 2
    assert "--limit_eval=half: must be a number." in done.stderr

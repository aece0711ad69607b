"""The learning-rate range test: what it finds, and that nothing changes."""

import json
import math

import keras
import numpy as np
import pytest

from tests.helpers import assert_same, make_trainer
from tests.trainer.check.test_check import digests
from tests.trainer.cli.tiny import TINY, run_trainer
from trainer import Trainer, UserError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(256, 3)).astype("float32")
DATA = X, X @ np.array([[1.0], [2.0], [3.0]], "float32")


def linear():
    return keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="zeros")]
    )


def make(**options):
    return make_trainer(
        linear,
        **{
            "optimizer": "sgd",
            "data": lambda split: DATA,
            "batch_size": 64,
            "jit_compile": "graph",
            **options,
        },
    )


def test_what_it_finds_and_leaves():
    trainer = make()
    trainer.train(3, verbose=0)
    before = [np.array(v) for v in trainer.state.capture().arrays.values()]
    found = trainer.lr_find(low=1e-5, steps=60)
    # Least squares of unit variance diverges above about 2 / (2 * 1).
    assert 1e-3 < found.suggestion < 1.0
    assert found.rates[0] == pytest.approx(1e-5)
    ratios = np.diff(np.log(found.rates))
    np.testing.assert_allclose(ratios, ratios[0], rtol=1e-5)
    assert len(found.rates) < 60
    assert "the loss exploded" in found.why
    # As fastai smooths.
    mean, smoothed = 0.0, []
    for number, loss in enumerate(found.losses, 1):
        mean = 0.98 * mean + 0.02 * loss
        smoothed.append(mean / (1 - 0.98**number))
    np.testing.assert_allclose(found.smoothed, smoothed, rtol=1e-9)
    falls = np.gradient(found.smoothed)
    place = found.rates.index(found.suggestion)
    lowest = int(np.argmin(found.smoothed))
    assert falls[place] == pytest.approx(falls[10 : lowest - 1].min(), rel=0.2)
    # The first loss is the next one of the run.
    assert trainer.step == 3
    after = [np.array(v) for v in trainer.state.capture().arrays.values()]
    assert_same(after, before)
    assert trainer.learning_rates()["learning_rate"] == 0.01
    other = make()
    other.train(6, verbose=0)
    trainer.train(6, verbose=0)
    assert_same(trainer.model.get_weights(), other.model.get_weights())
    shown = str(found).splitlines()
    assert len(shown) == 5
    assert shown[2].strip() == "^"


def test_what_is_refused(tmp_path):
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    trainer = make(optimizer=lambda: keras.optimizers.SGD(schedule))
    with pytest.raises(UserError, match="has the schedule ExponentialDecay"):
        trainer.lr_find()
    with pytest.raises(UserError, match="must be greater than low"):
        trainer.lr_find(low=1.0, high=0.1)
    with pytest.raises(UserError, match="steps"):
        trainer.lr_find(steps=3)
    # Before the first step, so that it does not matter that there is none.
    with pytest.raises(UserError, match=r"must end with .png"):
        trainer.lr_find(plot=tmp_path / "found.jpg")


@pytest.mark.long
def test_a_schedule_that_is_replaced_and_a_plot(tmp_path):
    pytest.importorskip("matplotlib")
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    trainer = make(
        optimizer=lambda: keras.optimizers.SGD(schedule), learning_rate=0.1
    )
    path = tmp_path / "found.png"
    found = trainer.lr_find(plot=path)
    assert found.suggestion
    assert path.read_bytes().startswith(b"\x89PNG")


class OwnStep(Trainer):
    def train_step(self, batch):
        return {"other": keras.ops.mean(batch[0])}


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["mirrored", "one_device"])
def test_other_strategies_find_the_same(strategy):
    found = make(strategy=strategy).lr_find()
    expected = make().lr_find()
    assert found.suggestion == expected.suggestion
    np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-3)
    with pytest.raises(UserError, match="no value 'loss'"):
        make(kind=OwnStep, loss=None).lr_find()


@pytest.mark.long
def test_a_loss_that_does_not_fall():
    found = make(data=lambda split: (X, 0 * X[:, :1])).lr_find()
    assert found.suggestion is None
    assert "No suggestion" in str(found)


@pytest.mark.long
def test_on_the_command_line(tmp_path):
    text = TINY + "run.callbacks = [@Checkpoint(), @JsonLines()]\n"
    done = run_trainer(tmp_path, "--model_dir=run", text=text)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "run"
    before = digests(run)
    done = run_trainer(tmp_path, "--mode=lr_find", "--model_dir=run", text=text)
    assert done.returncode == 0, done.stderr
    assert "learning rate" in done.stdout
    after = digests(run)
    found = json.loads((run / "lr_find.json").read_text())
    assert math.isfinite(found["losses"][0])
    for name in ("lr_find.json", "lr_find.png"):
        after.pop(name, None)
    assert after == before

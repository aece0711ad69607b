"""Several evaluation sets in a run, each with a period of its own."""

import keras
import numpy as np
import pytest

from tests.conformance import running
from tests.helpers import lines
from tests.trainer.loop.set_cases import (
    DATA,
    EVERY,
    X,
    Y,
    make,
    measured,
    train,
)
from trainer import Callback, UserError
from trainer_plugins import (
    Checkpoint,
    EarlyStopping,
    TensorBoard,
)


def steps_of(model_dir, split):
    return [n["step"] for n in lines(model_dir) if n["split"] == split]


def test_each_set_has_its_period_and_a_resumed_run_the_same(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    trainer = make()
    found = train(trainer, 15, str(whole))
    # At multiples of its period, and at the end.
    assert steps_of(whole, "eval") == [4, 8, 12, 15]
    assert steps_of(whole, "rare") == [6, 12, 15]
    assert found.keys() >= {"loss", "val_loss", "val_rare/loss", "val_rare/mae"}
    for split, prefix in (("eval", "val_"), ("rare", "val_rare/")):
        for name, value in measured(trainer, split).items():
            assert found[prefix + name] == pytest.approx(value, rel=1e-5)
            logged = [n for n in lines(whole) if n["split"] == split][-1]
            assert logged[name] == found[prefix + name]
    # Both sets are logged at the end of the shorter run, and neither is then
    # due: the longer one takes these logs back.
    train(make(), 7, str(parts))
    assert steps_of(parts, "rare") == [6, 7]
    train(make(), 15, str(parts))
    assert lines(parts) == lines(whole)


def test_wrong_sets_and_monitors_are_refused():
    trainer = make()
    with pytest.raises(UserError, match="or a dict of these by split"):
        trainer.train_and_evaluate(3, eval_every={"rare": "often"})
    with pytest.raises(UserError, match=r"no split 'rar'. Did you mean 'rare'"):
        trainer.train_and_evaluate(3, eval_every={"rar": 2})
    watched = EarlyStopping("val_rar/loss")
    with pytest.raises(UserError, match=r"Did you mean 'val_rare/loss'\?"):
        trainer.train_and_evaluate(3, eval_every=EVERY, callbacks=[watched])
    # Without the split "eval" nothing is called val_loss.
    with pytest.raises(UserError, match=r"Did you mean 'val_rare/loss'\?"):
        trainer.train_and_evaluate(
            3, eval_every={"rare": 2}, callbacks=[EarlyStopping("val_loss")]
        )
    assert trainer.step == 0


@pytest.mark.long
def test_callbacks_act_on_the_set_that_they_watch(tmp_path):
    seen = []

    class Notes(Callback):
        def on_test_end(self, logs=None):
            seen.append((self.run.evaluating, self.step()))

        def step(self):
            return self.run.step

    stop = EarlyStopping("val_rare/loss", patience=2)
    ends = []
    trainer = make()
    trainer.train_and_evaluate(
        60,
        model_dir=str(tmp_path),
        eval_every=EVERY,
        callbacks=[
            Notes(),
            stop,
            Checkpoint(every=6, keep_best=1, monitor="val_rare/loss"),
            TensorBoard(),
            keras.callbacks.LambdaCallback(
                on_epoch_end=lambda epoch, logs: ends.append(set(logs))
            ),
        ],
        verbose=0,
    )
    # The rare set has the opposite targets: it only gets worse.
    assert (trainer.step, stop.best_step) == (18, 6)
    assert "val_rare/loss has not improved" in trainer.stop_reason
    assert seen[:4] == [("eval", 4), ("rare", 6), ("eval", 8), ("eval", 12)]
    assert any("val_rare/mae" in names for names in ends)
    assert (tmp_path / "checkpoints" / "step_00000006").is_dir()
    assert (tmp_path / "eval_rare").is_dir()


@pytest.mark.long
def test_fit_takes_sets_as_validation_data():
    trainer = make(data=None)
    history = trainer.fit(
        X,
        Y,
        batch_size=8,
        epochs=4,
        validation_data={"eval": DATA["eval"], "rare": DATA["rare"]},
        validation_freq={"eval": 1, "rare": 2},
        verbose=0,
    )
    assert len(history.history["val_loss"]) == 4
    assert len(history.history["val_rare/loss"]) == 2
    wanted = measured(trainer, "rare")["mae"]
    assert history.history["val_rare/mae"][-1] == pytest.approx(
        wanted, rel=1e-5
    )
    with pytest.raises(UserError, match="validation_freq has no 'rare'"):
        trainer.fit(
            X,
            Y,
            validation_data={"eval": (X, Y), "rare": (X, Y)},
            validation_freq={"eval": 2},
        )
    with pytest.raises(UserError, match="the split 'train', which is x"):
        trainer.fit(X, Y, validation_data={"eval": (X, Y), "train": (X, Y)})
    own = make().fit(epochs=2, validation_freq={"rare": 2}, verbose=0)
    assert len(own.history["val_rare/loss"]) == 1
    assert "val_loss" not in own.history


@pytest.mark.long
@pytest.mark.parametrize(
    "strategy",
    [
        "one_device",
        "mirrored:2",
        "central_storage:2",
        "multi_worker_mirrored@2",
        "parameter_server@1+1",
    ],
)
def test_under_every_strategy(strategy, tmp_path):
    where = "tests.trainer.loop.set_cases:run"
    found = running.run(strategy, str(tmp_path), f"--extra={where}")
    for split, prefix in (("eval", "val_"), ("rare", "val_rare/")):
        for name in ("loss", "mae"):
            wanted = found[f"wanted.{split}.{name}"]
            got = found[f"found.{prefix}{name}"]
            assert got == pytest.approx(wanted, rel=1e-5), (split, name)
    assert steps_of(tmp_path / "run", "eval") == [4, 8, 12, 13]
    assert steps_of(tmp_path / "run", "rare") == [6, 12, 13]
    assert np.isfinite(found["found.loss"])

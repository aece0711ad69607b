"""Where host loops end, and that their graph is built once."""

import keras
import numpy as np
import pytest

from trainer import Callback, Trainer, UserError

X = np.random.default_rng(0).normal(size=(50, 3)).astype("float32")


def make(**options):
    return Trainer(
        **{
            "model": lambda: keras.Sequential([keras.layers.Dense(1)]),
            "loss": "mse",
            "data": lambda split: (X, X[:, :1]),
            "batch_size": 8,
            "strategy": "default",
            **options,
        }
    )


class Due(Callback):
    """Acts on the multiples of a number, and notes all boundaries."""

    def __init__(self, every=None):
        super().__init__()
        self.every, self.boundaries, self.logged = every, [], []

    def next_due(self, step):
        return self.every and (step // self.every + 1) * self.every

    def on_save(self, step, logs):
        self.boundaries.append(step)

    def on_log(self, step, split, logs):
        self.logged.append((step, split))


def test_loops_end_where_something_is_due():
    due = Due(every=9)
    # An epoch has 7 steps; loops end at multiples of 5.
    make().train_and_evaluate(
        20, steps_per_loop=5, log_every=4, eval_every=8, callbacks=[due]
    )
    assert due.boundaries == [5, 7, 8, 9, 10, 14, 15, 16, 18, 20]
    assert [s for s, split in due.logged if split == "eval"] == [8, 16]
    # Logging is due at 4, 8, 12, ...: it waits for the next boundary.
    trained = [s for s, split in due.logged if split == "train"]
    assert trained == [5, 8, 14, 16, 20]


def test_graphs_are_traced_once():
    traced = []

    class Noted(keras.layers.Dense):
        def call(self, x, training=None):
            traced.append(training)
            return super().call(x)

    trainer = make(model=lambda: keras.Sequential([Noted(1)]))
    trainer.train_and_evaluate(40, steps_per_loop=6, eval_every=9)
    assert {True, False} <= set(traced)
    traced.clear()
    trainer.train_and_evaluate(60, steps_per_loop=4, eval_every=5)
    assert not traced
    assert trainer.step == 60
    assert int(trainer._built.parts.step.numpy()) == 60


def test_stopping_ends_at_the_next_boundary():
    class Stop(Callback):
        def on_save(self, step, logs):
            if step >= 10:
                self.run.stop("enough")

    trainer = make()
    trainer.train(100, steps_per_loop=5, callbacks=[Stop()])
    assert trainer.step == 10
    assert trainer.stop_reason == "enough"
    trainer.train(20, steps_per_loop=5)
    assert trainer.step == 20


def test_close_is_called_for_all_whatever_fails():
    closed = []

    class Closing(Callback):
        def __init__(self, name, fail):
            super().__init__()
            self.name, self.fail = name, fail

        def close(self):
            closed.append(self.name)
            if self.fail:
                raise OSError(self.name)

    class Failing(Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise ValueError("in the middle")

    with pytest.raises((OSError, ValueError)) as raised:
        make().train(
            5,
            callbacks=[Closing("a", True), Failing(), Closing("b", False)],
        )
    assert closed == ["a", "b"]
    chain = [raised.value, raised.value.__context__]
    assert any(isinstance(error, ValueError) for error in chain)


def test_keras_callbacks_run_unmodified(tmp_path):
    trainer = make(learning_rate=0.01)
    batches, history = [], keras.callbacks.History()
    callbacks = [
        history,
        keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: batches.append((batch, logs))
        ),
        keras.callbacks.CSVLogger(str(tmp_path / "log.csv")),
        keras.callbacks.ModelCheckpoint(
            str(tmp_path / "best.keras"), monitor="val_loss"
        ),
        keras.callbacks.LearningRateScheduler(
            lambda epoch, rate: 0.01 / (epoch + 1)
        ),
        keras.callbacks.EarlyStopping(monitor="loss", patience=50),
        keras.callbacks.ReduceLROnPlateau(monitor="val_loss"),
        keras.callbacks.TerminateOnNaN(),
    ]
    trainer.train_and_evaluate(21, steps_per_loop=7, callbacks=callbacks)
    assert history.epoch == [0, 1, 2]
    assert set(history.history) >= {"loss", "val_loss"}
    assert [batch for batch, _ in batches] == [6, 6, 6]
    assert all(np.isfinite(logs["loss"]) for _, logs in batches)
    lines = (tmp_path / "log.csv").read_text().splitlines()
    assert len(lines) == 4
    assert trainer._built.learning_rates()["learning_rate"] == pytest.approx(
        0.01 / 3
    )
    loaded = keras.models.load_model(tmp_path / "best.keras")
    assert np.isfinite(loaded.predict(X, verbose=0)).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"callbacks": [Due]}, r"write Due\(\), with parentheses"),
        ({"steps": 0}, "must be a .*number.* >= 1"),
        ({"steps_per_loop": 0}, "must be a .*number.* >= 1"),
    ],
)
def test_what_cannot_work_is_named(options, message):
    with pytest.raises(UserError, match=message):
        make().train(**{"steps": 5, **options})

"""What a logger is tested with: a trainer in name only, and a real run."""

from types import SimpleNamespace

import keras

from tests.helpers import linear, make_trainer
from trainer.loop.goodput import Accounts


def make(kind, model_dir, *, step=0, is_chief=True, taken_back=()):
    """A logger of a run that has come to a step."""
    logger = kind()
    logger.run = SimpleNamespace(
        step=step,
        fired_step=step,
        taken_back=taken_back,
        model_dir=None if model_dir is None else str(model_dir),
        plugin=SimpleNamespace(is_chief=is_chief),
        sets=(),
        spec=SimpleNamespace(batch_size=64),
        accounts=Accounts(),
        learning_rates=lambda: {"learning_rate": 0.125},
    )
    return logger


def train_with(logger, model_dir):
    """Trains, and evaluates at steps 10 and 20; returns the newest values."""
    trainer = make_trainer(
        linear,
        optimizer=lambda: keras.optimizers.SGD(0.001),
    )
    return trainer.train_and_evaluate(
        20,
        model_dir=str(model_dir),
        callbacks=[logger],
        steps_per_loop=5,
        log_every=10,
        eval_every=10,
    )

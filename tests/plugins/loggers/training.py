"""A run of 20 steps that a logger records."""

import keras

from tests.helpers import linear, make_trainer


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

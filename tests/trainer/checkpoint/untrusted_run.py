"""Trains on in a model_dir that somebody else wrote; for a test.

    python untrusted_run.py <model_dir> [<init_from>]

Anything that would let a file run code ends the process with code 3.
"""

import os
import sys

import keras
import numpy as np

from trainer import Trainer
from trainer.checkpoint.init_from import initialize_from
from trainer_plugins import Checkpoint, EarlyStopping, JsonLines

X = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
# What a pickle needs to name anything, and what it could then do.
FORBIDDEN = ("pickle.find_class", "os.system")


def make():
    return Trainer(
        model=lambda: keras.Sequential(
            [keras.Input((3,)), keras.layers.Dense(4, name="body")]
        ),
        loss="mse",
        data=lambda split: (X, X[:, :1]),
        batch_size=8,
        strategy="default",
    )


def callbacks():
    return [
        keras.callbacks.ReduceLROnPlateau(monitor="loss"),
        EarlyStopping(monitor="loss"),
        JsonLines(),
        Checkpoint(every=2),
    ]


def refuse(event, arguments):
    if event in FORBIDDEN:
        os.write(2, f"{event} {arguments}\n".encode())
        os._exit(3)


def main(model_dir, init_from=None):
    trainer = make()
    # Whatever is imported late has been imported once.
    trainer.train(1, callbacks=callbacks()[:2])
    trainer = make()
    sys.addaudithook(refuse)
    if init_from:
        initialize_from(trainer._built.parts, init_from)
    trainer.train(8, model_dir=model_dir, callbacks=callbacks())
    print(trainer.step)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""An embedding whose rows each batch looks up several times."""

import keras
import numpy as np

from trainer import ArrayExamples, Guard, Trainer

VOCABULARY, BATCH, STEPS = 5, 8, 3
OPTIMIZERS = {
    "clipnorm": lambda: keras.optimizers.SGD(0.5, clipnorm=0.05),
    "global_clipnorm": lambda: keras.optimizers.SGD(0.5, global_clipnorm=0.05),
    "clipvalue": lambda: keras.optimizers.SGD(0.5, clipvalue=0.01),
    "momentum": lambda: keras.optimizers.SGD(0.5, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.05),
    "adagrad": lambda: keras.optimizers.Adagrad(0.05),
}


def arrays():
    rng = np.random.default_rng(2)
    words = rng.integers(0, VOCABULARY, size=(BATCH * STEPS, 4))
    words[:, 0] = 1  # One row is in every example.
    return words.astype("int32"), rng.normal(size=(len(words), 1))


def model():
    return keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            keras.layers.Embedding(
                VOCABULARY, 3, embeddings_initializer="ones"
            ),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1, kernel_initializer="ones"),
        ]
    )


def trained(strategy, optimizer, *, kind=Trainer, **options):
    words, y = arrays()
    trainer = kind(
        model=model,
        loss="mse",
        optimizer=OPTIMIZERS[optimizer],
        data=lambda split: ArrayExamples(
            (words, y.astype("float32")), shuffle=False
        ),
        batch_size=BATCH,
        strategy=strategy,
        **options,
    )
    trainer.train(STEPS)
    weights = trainer.model.get_weights()
    return {f"weight{i}": value for i, value in enumerate(weights)}


def clipped(strategy):
    return trained(strategy, "global_clipnorm", guard=Guard())


def adaptive(strategy):
    return trained(strategy, "adam")


CASES = {
    clipped: ("mirrored_3", "central_storage_2"),
    adaptive: ("mirrored_2", "central_storage_2"),
}

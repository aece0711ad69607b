"""Trains objects that hold more than their configuration; see test_objects.

    python -m tests.conformance.worker
        --extra=tests.trainer.python.objects_worker:run

By case: how far weights have moved in `fit` on one device, the largest
difference to these, and how far a saved model's predictions are from the
trained one's; or the sentence that refuses the case.
"""

import functools
import os

import keras
import numpy as np
import tensorflow as tf

from tests.trainer.python import object_cases as cases
from trainer import Trainer, UserError


def difference(left, right):
    return max(np.abs(a - b).max() for a, b in zip(left, right, strict=True))


@functools.cache
def by_keras(case):
    """The weights before and after `fit`."""
    model, optimizer, x = cases.make(case)
    model(tf.constant(x[:1]))
    before = model.get_weights()
    model.compile(optimizer, "mse")
    # `fit` builds it in a graph, where what `build` assigns is lost.
    optimizer.build(model.trainable_variables)
    model.fit(batches(x), epochs=2, verbose=0)
    return before, model.get_weights()


def batches(x):
    return tf.data.Dataset.from_tensor_slices((x, cases.Y)).batch(16)


def measured(case, strategy, directory):
    before, expected = by_keras(case)
    model, optimizer, x = cases.make(case)
    trainer = Trainer(
        model,
        # Other processes call it, too.
        data=lambda split: batches(x),
        loss="mse",
        optimizer=optimizer,
        strategy=strategy,
        batch_size=16,
    )
    trainer.fit(epochs=2, verbose=0)
    found = trainer.model.get_weights()
    path = os.path.join(directory, "model.keras")
    trainer.save(path)
    if case in cases.IN_FILES and trainer.plugin.is_chief:
        classes = {one.__name__: one for one in cases.CLASSES}
        model = keras.models.load_model(path, custom_objects=classes)
    x = tf.constant(x)
    away = model(x) - trainer.predict(x)
    return [
        difference(before, expected),
        difference(expected, found),
        np.abs(away).max(),
    ]


def run(plugin, directory, only=cases.ALL):
    """Cases under one strategy."""
    plugin.strategy  # noqa: B018 - before any other operation
    results = {}
    for case in only:
        try:
            found = measured(case, plugin, directory)
        except UserError as error:
            found = str(error)
        results[case] = np.array(found)
    return results

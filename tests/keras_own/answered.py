"""A pytest plugin: `fit` and `evaluate` of a Keras model are a Trainer's."""

import functools
import weakref

from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

from trainer import Trainer

_TRAINERS = weakref.WeakKeyDictionary()


def trainer_of(model):
    """The one Trainer of a model."""
    if model not in _TRAINERS:
        _TRAINERS[model] = Trainer(model, strategy="default")
    return _TRAINERS[model]


@functools.wraps(TensorFlowTrainer.fit)
def fit(self, *args, **options):
    """What a Trainer's `fit` does with these arguments."""
    return trainer_of(self).fit(*args, **options)


@functools.wraps(TensorFlowTrainer.evaluate)
def evaluate(self, x=None, y=None, batch_size=None, verbose="auto", **options):
    """What a Trainer's `evaluate` measures, in the form of Keras' own."""
    as_dict = options.pop("return_dict", False)
    values = trainer_of(self).evaluate(
        x, y, batch_size=batch_size, verbose=verbose, **options
    )
    found = list(values.values())
    return values if as_dict else found[0] if len(found) == 1 else found


def pytest_configure():
    """Puts them in place of Keras' own."""
    TensorFlowTrainer.fit = fit
    TensorFlowTrainer.evaluate = evaluate

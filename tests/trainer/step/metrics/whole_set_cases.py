"""Metrics over whole evaluation sets, to be measured under any strategy.

python -m tests.conformance.worker \
    --extra=tests.trainer.step.metrics.whole_set_cases:run
"""

import keras
import numpy as np

from trainer import Trainer, WholeSetMetric

_RANDOM = np.random.default_rng(0)
X = _RANDOM.normal(size=(53, 4)).astype("float32")
Y = (X.sum(axis=1, keepdims=True) ** 3).astype("float32")
LABELS = _RANDOM.integers(3, size=(53, 1)).astype("int32")
WEIGHTS = _RANDOM.uniform(0.5, 2, size=53).astype("float32")
# 21 and 10 examples in batches of 8: short batches, and empty pieces.
DATA = {"train": slice(0, 22), "eval": slice(22, 43), "rare": slice(43, 53)}


def rank_correlation(y, y_pred):
    """Spearman's, for numbers of which no two are equal."""
    ranks = [np.argsort(np.argsort(v[:, 0])) for v in (y, y_pred)]
    return np.corrcoef(*ranks)[0, 1]


def in_order(y, y_pred):
    """Depends on which example is where, and on how many there are."""
    return np.sum(np.arange(1, len(y) + 1) * (y_pred - y)[:, 0])


def frechet_distance(y, y_pred):
    """Between normal distributions of the diagonal covariances."""
    means, deviations = (
        [f(v, axis=0) for v in (y, y_pred)] for f in (np.mean, np.std)
    )
    return np.sum((means[0] - means[1]) ** 2) + np.sum(
        (deviations[0] - deviations[1]) ** 2
    )


def weighted_order(y, y_pred, sample_weight):
    assert sample_weight.shape == (len(y),)
    return in_order(y * sample_weight[:, None], y_pred)


def labels_in_order(y, y_pred):
    assert y.dtype == np.int32
    return in_order(y, y_pred)


FUNCTIONS = [rank_correlation, in_order, frechet_distance, weighted_order]


def make(plugin="default", *, weighted=False, labels=False, **options):
    def data(split):
        rows = DATA[split]
        y = LABELS if labels else Y
        return (X[rows], y[rows], *([WEIGHTS[rows]] if weighted else []))

    functions = [labels_in_order] if labels else FUNCTIONS
    if weighted:
        functions = [weighted_order]
    return Trainer(
        **{
            "model": lambda: keras.Sequential(
                [
                    keras.Input((4,)),
                    keras.layers.Dense(3, activation="tanh"),
                    keras.layers.Dense(1),
                ]
            ),
            "loss": "mse",
            "metrics": ["mae", *map(WholeSetMetric, functions)],
            "optimizer": lambda: keras.optimizers.SGD(0.01),
            "data": data,
            "batch_size": 8,
            "strategy": plugin,
            **options,
        }
    )


def wanted(trainer, split, *, weighted=False, labels=False):
    """The values by NumPy, from the weights as they are."""
    first, bias, last, offset = (
        np.array(v, "float64") for v in trainer.model.get_weights()
    )
    rows = DATA[split]
    x, y = X[rows], (LABELS if labels else Y)[rows]
    y_pred = np.tanh(x @ first + bias) @ last + offset
    if labels:
        return {"labels_in_order": in_order(y, y_pred)}
    weight = WEIGHTS[rows] if weighted else np.ones(len(y))
    found = {"weighted_order": weighted_order(y, y_pred, weight)}
    if not weighted:
        found |= {f.__name__: f(y, y_pred) for f in FUNCTIONS[:3]}
    return found


def run(plugin, directory):
    """Values of both sets after some steps, beside those of NumPy."""
    results = {}
    for name, options in {
        "plain": {},
        "weighted": {"weighted": True},
        "labels": {"labels": True},
    }.items():
        trainer = make(plugin, **options)
        found = trainer.train_and_evaluate(
            5, eval_every={"eval": 3, "rare": 4}, verbose=0
        )
        for split, prefix in (("eval", "val_"), ("rare", "val_rare/")):
            values = wanted(trainer, split, **options)
            for metric, value in values.items():
                key = f"{name}.{split}.{metric}"
                results[f"wanted.{key}"] = np.array(value)
                results[f"found.{key}"] = np.array(found[prefix + metric])
    return results

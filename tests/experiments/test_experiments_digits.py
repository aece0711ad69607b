import sys

import numpy as np
import pytest
import tensorflow as tf

from trainer import UserError
from trainer_experiments.digits import digits


@pytest.fixture(scope="module")
def raw():
    sklearn_datasets = pytest.importorskip("sklearn.datasets")
    return sklearn_datasets.load_digits(return_X_y=True)


def contents(split):
    examples = digits(split)
    return [
        part.numpy()
        for part in examples.gather(tf.range(examples.size, dtype=tf.int64))
    ]


def test_the_two_splits_are_all_digits_once(raw):
    pixels, labels = raw
    found = [contents(split) for split in ("train", "eval")]
    images = np.concatenate([images for images, _ in found])
    both = np.column_stack(
        [
            np.round(images.reshape(-1, 64) * 16),
            np.concatenate([labels for _, labels in found]),
        ]
    )
    expected = np.column_stack([pixels, labels])
    np.testing.assert_array_equal(
        both[np.lexsort(both.T)], expected[np.lexsort(expected.T)]
    )
    # No two images are alike, so the splits share none.
    assert len(np.unique(both[:, :64], axis=0)) == len(labels)


def test_without_scikit_learn(monkeypatch):
    for name in ("sklearn", "sklearn.datasets", "sklearn.model_selection"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        UserError, match=r"pip install 'keras-trainer-plugins\[digits\]'"
    ):
        digits("train")

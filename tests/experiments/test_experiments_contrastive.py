import numpy as np
import pytest
import tensorflow as tf

from trainer_experiments.contrastive import nt_xent


def by_the_equation(views, temperature):
    """Equation 1 of Chen et al. (2020), summed over all positive pairs."""
    z = np.concatenate([views[:, 0], views[:, 1]])
    similarity = np.exp(z @ z.T / temperature)
    size, terms = len(z), []
    for i in range(size):
        j = (i + size // 2) % size
        others = sum(similarity[i, k] for k in range(size) if k != i)
        terms.append(-np.log(similarity[i, j] / others))
    return np.mean(terms)


@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_the_loss_is_that_of_the_paper(temperature):
    views = np.random.default_rng(2).normal(size=(5, 2, 3))
    views /= np.linalg.norm(views, axis=-1, keepdims=True)
    found = nt_xent(tf.constant(views, tf.float32), temperature)
    assert float(found) == pytest.approx(
        by_the_equation(views, temperature), rel=1e-5
    )

"""The gallery: each experiment trains, and its parts are what they say."""

import functools
import math

import numpy as np
import pytest
import tensorflow as tf
from scipy import linalg

from tests.conftest import ROOT
from tests.helpers import read_lines, run_module
from trainer_experiments.gan import (
    frechet_distance,
)
from trainer_experiments.hub import vision_transformer
from trainer_experiments.resnet import resnet50_of_digits
from trainer_experiments.vae import VAE, vae

RNG = np.random.default_rng(0)
IMAGES = RNG.random((20, 28, 28, 1)).astype("float32")
LABELS = np.arange(20) % 10


def small(kind, model, **options):
    """A Trainer of a small model, and of 20 images if nothing else is said."""
    return kind(
        model=model,
        **{
            "data": lambda split: (IMAGES, LABELS),
            "batch_size": 10,
            "strategy": "default",
            "jit_compile": False,
            **options,
        },
    )


def test_the_bound_of_a_vae_is_that_of_the_paper():
    """Equation 10 and appendix B of Kingma and Welling (2013), in NumPy."""
    trainer = small(VAE, functools.partial(vae, units=4, latent=3))
    logits = RNG.normal(size=(5, 28, 28, 1))
    mean, log_variance = RNG.normal(size=(2, 5, 3))
    found = trainer.per_example_loss(
        tf.constant(IMAGES[:5]),
        None,
        {
            "image": tf.constant(logits, tf.float32),
            "posterior": tf.constant(
                np.concatenate([mean, log_variance], 1), tf.float32
            ),
        },
    )
    p = 1 / (1 + np.exp(-logits))
    likelihood = IMAGES[:5] * np.log(p) + (1 - IMAGES[:5]) * np.log(1 - p)
    divergence = -0.5 * (1 + log_variance - mean**2 - np.exp(log_variance))
    np.testing.assert_allclose(
        found["image"], -likelihood.sum((1, 2, 3)), rtol=1e-5
    )
    np.testing.assert_allclose(found["posterior"], divergence.sum(1), rtol=1e-5)


def test_the_frechet_distance_is_that_of_scipy():
    rng = np.random.default_rng(1)
    real, made = rng.random((2, 70, 28, 28, 1)).astype("float32")
    made = made**2
    sides = [
        one.reshape(70, 7, 4, 7, 4).mean((2, 4)).reshape(70, 49)
        for one in (real, made)
    ]
    one, other = (np.cov(side.T, bias=True) for side in sides)
    expected = np.sum((sides[0].mean(0) - sides[1].mean(0)) ** 2)
    expected += np.trace(one + other - 2 * np.real(linalg.sqrtm(one @ other)))
    found = frechet_distance(real, made)
    assert found == pytest.approx(expected, rel=1e-5)


MODELS = {"resnet": resnet50_of_digits, "hub": vision_transformer}


# By experiment: a value of the eval split, and the bound that it must reach.
REACHED = {
    "contrastive": ("probe_accuracy", 0.85),
    "gan": ("frechet", -0.5),
    "hub": ("accuracy", 0.92),
    "recommender": ("auc", 0.7),
    "resnet": ("accuracy", 0.88),
    "transformer": ("loss", -1.4),
    "vae": ("loss", -112.0),
}


def run_gallery(name, folder, mnist_dir, *flags):
    if name == "hub":
        pytest.importorskip("keras_hub")
    given = [f"--gin_file=experiments/{name}.gin", f"--model_dir={folder}"]
    if name in ("gan", "hub", "resnet", "vae"):
        given.append(f"--data_dir={mnist_dir}")
    run_module("trainer", *given, *flags, root=ROOT, timeout=3600)


@pytest.mark.long
@pytest.mark.parametrize("name", REACHED)
def test_figures_are_reached(name, tmp_path, mnist_dir):
    run_gallery(name, tmp_path, mnist_dir)
    metric, bound = REACHED[name]
    values = [
        line[metric]
        for line in read_lines(tmp_path / "metrics.jsonl")
        if line["split"] == "eval"
    ]
    assert math.copysign(values[-1], bound) >= bound

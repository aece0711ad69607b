"""A VQ-VAE, and the centre of DINO: what they keep is that of one device."""

import keras
import numpy as np
import pytest
from keras import layers, ops

from tests.conformance.running import run
from tests.trainer.step.reductions.exact import (
    assert_close,
    found_in,
    pairs,
    run_cases,
)
from trainer import ArrayExamples, Trainer, UserError

# Full batches, and one of a single example.
SIZE, BATCH, EPOCHS, RATE = 33, 16, 3, 0.05
X = np.random.default_rng(3).normal(size=(SIZE, 6)).astype("float32")


class Codebook(layers.Layer):
    """Vectors that follow averages over time of counts and sums."""

    def __init__(self, numbers=5, decay=0.9, aggregation=None, **options):
        super().__init__(**options)
        self.numbers, self.decay = numbers, decay
        self.how = {} if aggregation is None else {"aggregation": aggregation}

    def build(self, shape):
        def kept(name, *shape, initializer="zeros", **how):
            return self.add_weight(
                shape=shape,
                initializer=initializer,
                trainable=False,
                name=name,
                **how,
            )

        size = shape[-1]
        self.vectors = kept(
            "vectors", size, self.numbers, initializer="random_normal"
        )
        self.counts = kept("counts", self.numbers, **self.how)
        self.sums = kept("sums", size, self.numbers, **self.how)

    def follow(self, variable, added):
        variable.assign(self.decay * variable + (1 - self.decay) * added)

    def call(self, x, training=False):
        distances = ops.sum(self.vectors**2, 0) - 2 * x @ self.vectors
        chosen = ops.one_hot(ops.argmin(distances, -1), self.numbers)
        found = ops.stop_gradient(chosen @ ops.transpose(self.vectors))
        if training:
            self.follow(self.counts, ops.sum(chosen, 0))
            self.follow(self.sums, ops.transpose(x) @ chosen)
            # Smoothed, and computed of the variables as they are now.
            total = ops.sum(self.counts)
            share = (self.counts + 1e-3) / (total + 1e-3 * self.numbers)
            self.vectors.assign(self.sums / (share * total))
        self.add_loss(0.25 * ops.mean((x - found) ** 2))
        return x + ops.stop_gradient(found - x)


class Corrected(Codebook):
    """The same by what is subtracted."""

    def follow(self, variable, added):
        variable.assign_sub((1 - self.decay) * (variable - added))


class Warming(Codebook):
    """Its decay follows a count of steps: no trial can tell its values."""

    def build(self, shape):
        super().build(shape)
        self.steps = self.add_weight(
            shape=(), dtype="int32", initializer="zeros", trainable=False
        )

    def follow(self, variable, added):
        self.steps.assign_add(1)
        steps = ops.cast(self.steps, "float32")
        decay = 0.99 - 0.5 / (steps + 1)
        variable.assign(decay * variable + (1 - decay) * added)


class Half(layers.Layer):
    """Keeps averages over time of a sum and of a mean in mixed precision."""

    def build(self, shape):
        self.sums, self.means = (
            self.add_weight(shape=shape[1:], trainable=False) for _ in range(2)
        )

    def call(self, x, training=False):
        if training:
            self.sums.assign(0.75 * self.sums + ops.sum(x, 0))
            self.means.assign(0.75 * self.means + 0.25 * ops.mean(x, 0))
        return x


class Centre(layers.Layer):
    """Targets of DINO: centred by a mean over time of batches."""

    def build(self, shape):
        self.centre = self.add_weight(
            shape=shape[1:], initializer="zeros", trainable=False
        )

    def call(self, x, training=False):
        found = ops.softmax((x - self.centre) / 0.5)
        if training:
            self.centre.assign(0.9 * self.centre + 0.1 * ops.mean(x, 0))
        return found


def made(layer):
    keras.utils.set_random_seed(2)
    return keras.Sequential(
        [keras.Input((6,)), layers.Dense(4), layer(), layers.Dense(6)]
    )


LAYERS = {
    "plain": Codebook,
    "declared": lambda: Codebook(aggregation="sum"),
    "corrected": Corrected,
    "centre": Centre,
}


def trained(layer, strategy, **options):
    trainer = Trainer(
        model=lambda: made(layer),
        loss="mse",
        optimizer=lambda: keras.optimizers.SGD(RATE),
        data=lambda split: ArrayExamples((X, X), shuffle=False),
        batch_size=BATCH,
        strategy=strategy,
        **options,
    )
    logs = trainer.train(EPOCHS * -(-SIZE // BATCH), log_every="1 epoch")
    return numbered(trainer.model.get_weights()) | {"loss": logs["loss"]}


def numbered(weights):
    return {f"weight{i}": np.array(one) for i, one in enumerate(weights)}


def plain(strategy):
    return trained(LAYERS["plain"], strategy)


def declared(strategy):
    return trained(LAYERS["declared"], strategy)


def corrected(strategy):
    return trained(LAYERS["corrected"], strategy)


def centre(strategy):
    return trained(LAYERS["centre"], strategy)


def half(strategy):
    """What bfloat16 rounds is far less than a decay once a replica."""
    return trained(Half, strategy, precision="mixed_bfloat16")


def refused(strategy):
    try:
        trained(Warming, strategy)
    except UserError as error:
        return {"said": str(error)}
    return {"said": ""}


SYNCHRONOUS = ("default", "mirrored_2", "mirrored_3", "central_storage_2")
CASES = {
    plain: SYNCHRONOUS,
    declared: SYNCHRONOUS,
    corrected: SYNCHRONOUS[2:],
    centre: SYNCHRONOUS,
    half: ("default", "mirrored_2"),
    refused: ("mirrored_2",),
}
LONG = [
    (name, strategy)
    for name in ("plain", "declared", "centre")
    for strategy in ("default", "mirrored_2")
] + [
    ("corrected", "central_storage_2"),
    ("declared", "central_storage_2"),
    ("declared", "mirrored_3"),
    ("centre", "mirrored_3"),
]


@pytest.fixture(scope="module")
def results(request, tmp_path_factory, root):
    directory = tmp_path_factory.mktemp("codebook")
    module = "tests.experiments.test_experiments_codebook"
    return run_cases(module, request, directory, root, LONG)


def fitted(layer):
    model = made(layer)
    model.compile(keras.optimizers.SGD(RATE), "mse")
    history = model.fit(
        X, X, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0
    )
    return numbered(model.get_weights()) | {"loss": history.history["loss"][-1]}


@pytest.mark.parametrize(
    ("case", "strategy"),
    [
        pair
        for pair in pairs(CASES, LONG)
        if getattr(pair, "values", pair)[0] in LAYERS
    ],
)
def test_equals_fit(results, case, strategy):
    assert_close(found_in(results, case, strategy), fitted(LAYERS[case]))


def on_workers(strategy, directory):
    return {
        f"{case.__name__}.{key}": value
        for case in (plain, declared, centre)
        for key, value in case(strategy).items()
    }


@pytest.mark.long
def test_equals_fit_on_two_workers(tmp_path):
    extra = f"--extra={on_workers.__module__}:{on_workers.__name__}"
    found = run("multi_worker_mirrored@2", tmp_path, extra)
    for name in ("plain", "declared", "centre"):
        expected = fitted(LAYERS[name])
        assert_close(
            {key: found[f"{name}.{key}"] for key in expected}, expected
        )


def test_mixed_precision_is_tried_as_well(results):
    found = found_in(results, "half", "mirrored_2")
    expected = found_in(results, "half", "default")
    for name in ("weight2", "weight3"):  # The sums, and the means.
        scale = np.max(np.abs(expected[name]))
        assert np.max(np.abs(found[name] - expected[name])) < 0.05 * scale


def test_a_decay_that_varies_is_refused(results):
    said = str(found_in(results, "refused", "mirrored_2")["said"])
    assert "counts' keeps a value that is no mean over the batch" in said
    assert "Means, and n = d * n + s for a constant d" in said

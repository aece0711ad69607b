"""What a guarded step does, against a linear model in NumPy."""

import dataclasses
import itertools
import math
import re
from typing import NamedTuple

import keras
import numpy as np
import pytest

from tests.sets import ordinary
from trainer import ArrayExamples, Diverged, Guard, Trainer, UserError
from trainer_plugins import Default

BATCH, RATE = 4, 0.1


def batches_of(count):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(count, BATCH, 3)).astype("float32")
    return x, x.sum(-1, keepdims=True) + 1.0


class Linear:
    """Least squares by gradient descent, in float64."""

    def __init__(self):
        self.weight = np.zeros((3, 1))

    def measure(self, x, y):
        error = x.astype("float64") @ self.weight - y
        self.gradient = 2 * x.T.astype("float64") @ error / BATCH
        return np.mean(error**2), np.linalg.norm(self.gradient)

    def update(self):
        self.weight = self.weight - RATE * self.gradient


def make(arrays, guard, *, trainer=Trainer, **options):
    flat = tuple(part.reshape(-1, part.shape[-1]) for part in arrays)
    options = {"strategy": Default(), **options}
    return trainer(
        model=lambda: keras.Sequential(
            [keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
        ),
        loss="mse",
        optimizer=lambda: keras.optimizers.SGD(RATE),
        data=lambda split: ArrayExamples(flat, shuffle=False),
        batch_size=BATCH,
        guard=guard,
        **options,
    )


class Fault(NamedTuple):
    step: int
    reason: str
    loss: float
    gradient_norm: float


STORY = re.compile(
    r"after step (\d+), .*?: (.*) \(loss (\S+), gradient norm ([^\s)]+)\)"
)


def take(trainer, steps):
    """Steps in one graph call; the weights, and what the run said."""
    fault = None
    try:
        trainer.train(steps, steps_per_loop=steps, verbose=0)
    except Diverged as error:
        step, reason, loss, norm = STORY.search(str(error)).groups()
        fault = Fault(int(step), reason, float(loss), float(norm))
    return trainer.model.weights[0].numpy(), fault


def reference(arrays, is_bad):
    """Weights without the bad steps, and the first of these."""
    linear, first = Linear(), None
    for step, (x, y) in enumerate(zip(*arrays, strict=True)):
        loss, norm = linear.measure(x, y)
        if is_bad(loss, norm):
            first = first or (step, loss, norm)
        else:
            linear.update()
    return linear.weight, first


class Looping(Default):
    """A strategy whose replicas may hold loops, as a TPU's may."""

    name = "looping_default"
    options = dataclasses.replace(
        Default.options, static_shapes=True, loops_on_replicas=True
    )


WAYS = {
    "phases": {},
    "accumulated": {"accumulation_steps": 2},
    "compiled": {"jit_compile": True},
    "compiled_accumulated": {"jit_compile": True, "accumulation_steps": 2},
    "compiled_on_one_device": {"jit_compile": True, "strategy": "one_device"},
    "compiled_and_mirrored": {"jit_compile": True, "strategy": "mirrored"},
    "on_replicas": {"strategy": Looping()},
    "accumulated_on_replicas": {
        "strategy": Looping(),
        "accumulation_steps": 2,
    },
}


@pytest.mark.parametrize(
    ("way", "value"),
    ordinary(
        itertools.product(WAYS, (math.nan, math.inf)),
        [
            ("phases", math.nan),
            ("phases", math.inf),
            ("accumulated", math.nan),
            ("compiled", math.nan),
            ("compiled_and_mirrored", math.nan),
            ("accumulated_on_replicas", math.nan),
        ],
    ),
)
def test_a_bad_step_leaves_the_weights_alone(way, value):
    x, y = batches_of(12)
    x[5, 2, 1] = value
    weight, fault = take(make((x, y), Guard(), **WAYS[way]), 12)
    expected, _ = reference((x, y), lambda loss, *_: not math.isfinite(loss))
    np.testing.assert_allclose(weight, expected, atol=1e-6)
    assert fault.step == 5
    assert fault.reason == f"loss is {value * value}"


@pytest.mark.parametrize(
    "way", ordinary(WAYS, ["phases", "compiled", "accumulated_on_replicas"])
)
def test_averages_stay_where_they_are_when_an_update_is_refused(way):
    """By NumPy: the sixth step moves neither the weights nor their average."""
    x, y = batches_of(12)
    x[5, 2, 1] = math.nan
    trainer = make((x, y), Guard(), ema_momentum=0.5, **WAYS[way])
    linear = Linear()
    average = linear.weight.copy()
    for step, (inputs, targets) in enumerate(zip(x, y, strict=True)):
        if step == 5:
            continue
        _, norm = linear.measure(inputs, targets)
        linear.update()
        average += 0.5 * (linear.weight - average)
    take(trainer, 12)
    (found,) = trainer._built.parts.ema.variables
    np.testing.assert_allclose(found.numpy(), average, atol=1e-6)


@pytest.mark.parametrize(
    "way", ordinary(WAYS, ["phases", "compiled_accumulated", "on_replicas"])
)
def test_limits_of_loss_and_gradient(way):
    x, y = batches_of(12)
    y[6:8] *= 40.0
    for name, limit in ("max_loss", 100.0), ("max_gradient_norm", 20.0):
        index = name == "max_gradient_norm"
        weight, fault = take(
            make((x, y), Guard(**{name: limit}), **WAYS[way]), 12
        )
        expected, (step, loss, norm) = reference(
            (x, y),
            lambda loss, norm, i=index, most=limit: (loss, norm)[i] > most,
        )
        np.testing.assert_allclose(weight, expected, atol=1e-5)
        assert fault.step == step == 6
        assert fault.loss == pytest.approx(loss, rel=1e-5)
        assert fault.gradient_norm == pytest.approx(norm, rel=1e-5)
        assert f"is above {name} = {limit:g}" in fault.reason


def test_an_overflow_of_float16_is_no_fault_while_the_scale_can_fall():
    x, y = batches_of(4)
    trainer = make((x, 2000 * y), Guard(), precision="mixed_float16")
    trainer.build()
    scale = trainer._built.parts.loss_scale.variables[0]
    scale.assign(2.0**40)
    _, fault = take(trainer, 3)
    assert fault is None
    assert float(scale) == 2.0**37
    assert int(trainer.optimizer.iterations.numpy()) == 0
    x[0, 0, 0] = math.inf
    _, fault = take(make((x, y), Guard(), precision="mixed_float16"), 3)
    assert fault.step == 0


def test_float16_at_its_smallest_scale_is_judged():
    x, y = batches_of(4)

    class Steep(Trainer):
        def per_example_loss(self, x, y, y_pred):
            # Finite, with a gradient that float16 cannot hold.
            value = keras.ops.cast(y_pred[:, 0], "float32") - 1.0
            return 1e7 * value

    trainer = make((x, y), Guard(), trainer=Steep, precision="mixed_float16")
    trainer.build()
    trainer._built.parts.loss_scale.variables[0].assign(1.0)
    weight, fault = take(trainer, 3)
    assert (fault.step, fault.reason[:16]) == (0, "gradient norm is")
    assert np.isfinite(weight).all()


def test_a_step_of_ones_own_takes_no_guard():
    class Own(Trainer):
        def train_step(self, batch):
            return super().train_step(batch)

    with pytest.raises(UserError, match="whose update a guard cannot hold"):
        make(batches_of(2), Guard(), trainer=Own)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"action": "rollback"}, "Did you mean 'roll_back'?"),
        ({"max_gradient_norm": math.nan}, "max_gradient_norm = nan"),
        (
            {"max_gradient_norm": 0},
            "max_gradient_norm = 0 must be a number > 0",
        ),
        ({"max_rollbacks": 0}, "max_rollbacks = 0 must be"),
    ],
)
def test_wrong_arguments(options, words):
    with pytest.raises(UserError, match=words.replace("?", r"\?")):
        Guard(**options)

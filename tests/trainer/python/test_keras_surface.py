"""What is set after a Trainer is made, and Keras' settings: as in `fit`."""

import itertools
import random

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.sets import ordinary
from tests.trainer.python.object_cases import Scaled, X, Y, dense
from trainer import Trainer, UserError
from trainer_plugins import Checkpoint
from trainer_plugins.strategies.mirrored import Mirrored

EPOCHS = {"epochs": 2, "verbose": 0, "shuffle": False, "batch_size": 16}
STRATEGIES = {
    "default": lambda: "default",
    "one_device": lambda: "one_device",
    "mirrored": lambda: Mirrored(devices="cpu:0"),
}
# Where the model is another one than was given.
SOME = ordinary(STRATEGIES, ["mirrored"])


def net():
    keras.utils.set_random_seed(2)
    return dense(keras.layers.Dense(3, activation="tanh"))


def compiled():
    made = net()
    made.compile("adam", "mse")
    made.optimizer.learning_rate = 0.1
    return made


def compiled_again(model, fit):
    fit()
    model.compile(keras.optimizers.SGD(0.1), "mae", metrics=["mse"])
    return fit()


def thawed(model, fit):
    model.layers[0].trainable = False
    fit()
    model.layers[0].trainable = True
    model.compile(keras.optimizers.Adam(0.1), "mse")
    return fit()


def rate_set_twice(model, fit):
    fit()
    model.optimizer.learning_rate = 0.3
    return fit()


def both(change, strategy):
    """Weights and values after a change, by Keras and by a Trainer."""
    for kind in ("keras", "trainer"):
        model = compiled()
        owner = model
        if kind == "trainer":
            owner = Trainer(model, strategy=STRATEGIES[strategy]())
        history = change(model, lambda: owner.fit(X, Y, **EPOCHS))  # noqa: B023
        yield model.get_weights(), history.history


@pytest.mark.parametrize(
    ("change", "strategy"),
    ordinary(
        itertools.product((compiled_again, thawed, rate_set_twice), STRATEGIES),
        [
            (compiled_again, "default"),
            (compiled_again, "mirrored"),
            (thawed, "mirrored"),
            (rate_set_twice, "default"),
        ],
    ),
)
def test_what_is_changed_between_two_calls(change, strategy):
    (expected, of_keras), (found, ours) = both(change, strategy)
    for left, right in zip(expected, found, strict=True):
        np.testing.assert_allclose(right, left, atol=1e-6)
    assert set(ours) == set(of_keras)
    for name, values in of_keras.items():
        assert ours[name] == pytest.approx(values, rel=1e-5)


def distiller():
    keras.utils.set_random_seed(4)
    model = keras.distillation.Distiller(
        teacher=net(),
        student=dense(keras.layers.Dense(2, activation="tanh")),
        distillation_losses=[keras.distillation.LogitsDistillation()],
        student_loss_weight=0.7,
    )
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    return model


def test_a_distiller_of_keras_has_a_loss_of_its_own():
    expected, found = distiller(), distiller()
    before = expected.student.get_weights()[0]
    expected.fit(X, Y, **EPOCHS)
    Trainer(found, strategy="default").fit(X, Y, **EPOCHS)
    weights = [one.student.get_weights()[0] for one in (expected, found)]
    assert np.abs(weights[0] - before).max() > 0.01
    np.testing.assert_allclose(weights[1], weights[0], atol=1e-6)


@pytest.mark.parametrize("strategy", SOME)
def test_a_model_with_nothing_to_train(strategy):
    model = net()
    model.trainable = False
    before = model.get_weights()
    trainer = Trainer(model, loss="mse", strategy=STRATEGIES[strategy]())
    trainer.fit(X, Y, **EPOCHS)
    for one, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_state_goes_from_one_trainer_to_the_next_and_to_fit():
    expected = compiled()
    expected.fit(X, Y, **EPOCHS | {"epochs": 4})
    model = compiled()
    for strategy in ("default", "mirrored", "one_device"):
        trainer = Trainer(model, strategy=STRATEGIES[strategy]())
        trainer.fit(X, Y, **EPOCHS | {"epochs": 1})
    model.fit(X, Y, **EPOCHS | {"epochs": 1})
    for left, right in zip(
        expected.get_weights(), model.get_weights(), strict=True
    ):
        np.testing.assert_allclose(right, left, atol=1e-6)


def test_a_trainer_leaves_its_own_optimizer_to_no_other():
    def trained(*before):
        model = net()
        model.compile(keras.optimizers.SGD(0.1), "mse")
        weights = model.get_weights()
        for options in before:
            Trainer(model, strategy="default", **options).fit(X, Y, verbose=0)
        model.set_weights(weights)
        trainer = Trainer(model, strategy="default")
        trainer.fit(X, Y, **EPOCHS)
        return type(trainer.optimizer), model.get_weights()

    kind, expected = trained()
    found = trained({"optimizer": "adam"}, {"learning_rate": 0.7})
    assert kind is found[0] is keras.optimizers.SGD
    for one, other in zip(expected, found[1], strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("strategy", SOME)
def test_a_rate_that_is_set_before_the_first_call_counts(strategy):
    optimizer = keras.optimizers.SGD(0.1)
    trainer = Trainer(
        net(), loss="mse", optimizer=optimizer, strategy=STRATEGIES[strategy]()
    )
    trainer.build()
    optimizer.learning_rate = 0.3
    trainer.fit(X, Y, verbose=0)
    np.testing.assert_allclose(trainer.optimizer.learning_rate, 0.3)


def test_the_steps_go_on_when_a_model_is_compiled_again():
    model = compiled()
    trainer = Trainer(model, data=(X, Y), strategy="default", batch_size=16)
    trainer.train(3)
    model.compile("sgd", "mse")
    trainer.train(5)
    assert trainer.step == 5
    assert trainer.optimizer is model.optimizer


def test_loss_weights_of_compile_need_its_loss():
    model = net()
    model.compile("sgd", "mse", loss_weights=[2.0])
    with pytest.raises(UserError, match=r"Pass Trainer\(loss_weights"):
        Trainer(model, loss="mae")
    Trainer(model, loss="mae", loss_weights=[2.0])


@pytest.fixture
def limits():
    keras.config.set_max_epochs(2)
    keras.config.set_max_steps_per_epoch(3)
    yield
    keras.config.set_max_epochs(None)
    keras.config.set_max_steps_per_epoch(None)


@pytest.mark.usefixtures("limits")
def test_limits_of_keras_config_hold():
    whole = X[:48], Y[:48]
    model = compiled()
    expected = model.fit(*whole, **EPOCHS | {"epochs": 5}).history
    trainer = Trainer(compiled(), strategy="default", batch_size=16)
    found = trainer.fit(*whole, **EPOCHS | {"epochs": 5}).history
    assert len(found["loss"]) == 2
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    measured = model.evaluate(X, Y, batch_size=16, verbose=0)
    assert trainer.evaluate(X, Y)["loss"] == pytest.approx(measured, rel=1e-5)
    assert len(trainer.predict(X)) == len(model.predict(X, 16, verbose=0))
    steps = trainer.step
    # No more than one pass over the data.
    keras.config.set_max_steps_per_epoch(100)
    trainer.fit(*whole, **EPOCHS)
    assert trainer.step == steps + 6


def test_a_distribution_of_keras_is_refused():
    parallel = keras.distribution.DataParallel(devices=["cpu:0"])
    keras.distribution.set_distribution(parallel)
    try:
        with pytest.raises(UserError, match="Name a strategy"):
            Trainer(compiled(), strategy="default").fit(X, Y)
    finally:
        keras.distribution.set_distribution(None)


def test_building_a_trainer_draws_nothing():
    model = compiled()

    def drawn():
        return random.random(), np.random.random()

    random.seed(3)
    np.random.seed(3)
    expected = drawn(), drawn()
    random.seed(3)
    np.random.seed(3)
    first = drawn()
    Trainer(model, data=(X, Y), strategy="default").build()
    assert (first, drawn()) == expected


class Plain(keras.Model):
    """What others override a method of."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)


class Predicts(Plain):
    def predict_step(self, data):
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        return {"hundred": 100 * self(x, training=False), "x": x}


@pytest.mark.parametrize("strategy", SOME)
def test_a_predict_step_of_a_model_is_called(strategy):
    model = Predicts()
    expected = model.predict(X, verbose=0)
    trainer = Trainer(model, loss="mse", strategy=STRATEGIES[strategy]())
    for data in (X, tf.data.Dataset.from_tensor_slices((X, Y)).batch(16)):
        found = trainer.predict(data)
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-5)


class OwnCompile(Plain):
    def compile(self, one, other):
        super().compile(one)
        self.other = other


class OfKerasHub(Plain):
    preprocessor = None

    def fit(self, *args, **options):
        return super().fit(*args, **options)


@pytest.mark.parametrize("kind", [OwnCompile, OfKerasHub])
def test_a_method_that_nothing_depends_on(kind):
    trainer = Trainer(kind(), loss="mse", strategy="default")
    trainer.fit(X, Y, verbose=0)


class WithoutCall(keras.Model):
    def train_step(self, data):
        return {}


def overriding(name, of=Plain):
    return type("Own", (of,), {name: lambda self, *args, **options: None})


class OwnLosses(Plain):
    @property
    def losses(self):
        return [1.0]


class Preprocesses(OfKerasHub):
    def preprocessor(self, x):
        return x


SGD = keras.optimizers.SGD
REFUSED = {
    "no call": (lambda: {"model": WithoutCall()}, "Trainer.train_step"),
    "fit": (lambda: {"model": overriding("fit")()}, "Own.fit is overridden"),
    "evaluate": (
        lambda: {"model": overriding("evaluate")()},
        "a subclass of Trainer",
    ),
    "predict": (
        lambda: {"model": overriding("predict")()},
        "a subclass of Trainer",
    ),
    "make_predict_function": (
        lambda: {"model": overriding("make_predict_function")()},
        "predict_step or Trainer.forward",
    ),
    "reset_metrics": (
        lambda: {"model": overriding("reset_metrics")()},
        "Trainer.metrics",
    ),
    "losses": (lambda: {"model": OwnLosses()}, "add_loss in the layer"),
    "preprocessor": (
        lambda: {"model": Preprocesses()},
        "dataset.map.model.preprocessor",
    ),
    "scale_loss": (
        lambda: {"optimizer": overriding("scale_loss", of=SGD)(0.1)},
        "Own.scale_loss is overridden",
    ),
}


@pytest.mark.parametrize(
    ("case", "strategy"),
    ordinary(
        itertools.product(REFUSED, STRATEGIES),
        # By turns: nothing of it asks for the strategy.
        zip(REFUSED, itertools.cycle(["default", "mirrored"]), strict=False),
    ),
)
def test_a_method_that_would_not_be_called_is_refused(case, strategy):
    make, message = REFUSED[case]
    options = {"model": net, "loss": "mse", **make()}
    strategy = STRATEGIES[strategy]()
    with pytest.raises(UserError, match=message):
        Trainer(strategy=strategy, **options).fit(X, Y, verbose=0)


class Remembering(keras.metrics.Metric):
    """Its value is the largest sum so far, which no reset forgets."""

    def __init__(self, **options):
        super().__init__(**options)
        self.total = self.add_variable((), "zeros", name="total")
        self.best = self.add_variable((), "zeros", name="best")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(tf.reduce_sum(tf.abs(y_true - y_pred)))
        self.best.assign(tf.maximum(self.best, self.total))

    def result(self):
        # Not the variable, which an evaluation changes before it is logged.
        return self.best + 0.0

    def reset_state(self):
        self.total.assign(0.0)


class Moving(Remembering):
    """Its reset makes a value of the one before."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(tf.reduce_sum(tf.abs(y_true - y_pred)))

    def reset_state(self):
        self.best.assign(self.total.value)
        self.total.assign(0.0)


class WithConstant(Moving):
    """Has a variable that nothing changes."""

    def result(self):
        return self.total.value + self.best.value

    def reset_state(self):
        self.total.assign(0.0)


@pytest.mark.parametrize("kind", [Remembering, Moving, WithConstant])
def test_what_a_metric_remembers(kind):
    model, trainer = net(), measuring(kind, "default")
    model.compile(SGD(0.1), "mse", metrics=[kind(name="sum")])
    options = EPOCHS | {"validation_data": (X[:7], Y[:7])}
    for _ in range(2):
        expected = model.fit(X, Y, **options).history
        found = trainer.fit(X, Y, **options).history
        for name in ("sum", "val_sum"):
            assert found[name] == pytest.approx(expected[name], rel=1e-5)
        expected = model.evaluate(X, Y, verbose=0, return_dict=True)["sum"]
        found = trainer.evaluate(X, Y, verbose=0)["sum"]
        assert found == pytest.approx(expected, rel=1e-5)


def test_what_a_metric_remembers_of_cut_batches_is_refused():
    trainer = measuring(Moving, "default", accumulation_steps=2)
    with pytest.raises(UserError, match="reset_state keeps something, does"):
        trainer.fit(X, Y, **EPOCHS)


def test_what_a_metric_remembers_is_in_a_checkpoint(tmp_path):
    """An evaluation that is there only because the run ended leaves nothing."""
    data = {"train": (X, Y), "eval": (X[:7], Y[:7])}
    options = {"data": data, "batch_size": 16}
    calls = {"eval_every": "1 epoch", "log_every": 1}
    expected = measuring(Moving, "default", **options)
    expected = expected.train_and_evaluate(9, **calls)
    for steps in (4, 6, 9):
        trainer = measuring(Moving, "default", **options)
        found = trainer.train_and_evaluate(
            steps, model_dir=str(tmp_path), callbacks=[Checkpoint()], **calls
        )
    for name in ("sum", "val_sum"):
        assert found[name] == pytest.approx(expected[name], rel=1e-6)
        assert found[name] > 0


@pytest.mark.parametrize("strategy", SOME)
def test_a_variable_that_nothing_changes_is_no_memory(strategy):
    model = net()
    model.compile(SGD(0.1), "mse", metrics=[WithConstant(name="sum")])
    expected = model.fit(X, Y, **EPOCHS).history["sum"]
    found = measuring(WithConstant, strategy).fit(X, Y, **EPOCHS).history["sum"]
    assert found == pytest.approx(expected, rel=1e-5)


def measuring(kind, strategy, **options):
    return Trainer(
        net(),
        loss="mse",
        optimizer=SGD(0.1),
        metrics=[kind(name="sum")],
        strategy=STRATEGIES[strategy](),
        **options,
    )


def test_what_only_fit_ends_with_is_refused_in_train():
    optimizer = SGD(0.1, use_ema=True)
    trainer = Trainer(
        net(), loss="mse", optimizer=optimizer, data=(X, Y), strategy="default"
    )
    with pytest.raises(UserError, match="call fit, or use"):
        trainer.train(1)
    trainer.fit(verbose=0)


def test_an_attribute_that_no_copy_can_have_is_refused():
    model = net()
    model.layers[0].later = {"here": tf.Variable(1.0)}
    for strategy in ("default", "one_device"):
        Trainer(model, loss="mse", strategy=strategy).fit(X, Y, verbose=0)
    own = dense(keras.layers.Dense(3), Scaled(name="own"))
    own.layers[1].later = {"here": tf.Variable(1.0)}
    with pytest.raises(UserError, match="'own' has an attribute 'later'"):
        Trainer(own, loss="mse", strategy=STRATEGIES["mirrored"]()).build()


def test_averages_of_keras_are_swapped():
    found = []
    for kind in ("keras", "trainer"):
        model = net()
        optimizer = SGD(0.1, use_ema=True, ema_momentum=0.5)
        swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
        options = EPOCHS | {"validation_data": (X, Y), "callbacks": [swap]}
        if kind == "keras":
            model.compile(optimizer, "mse")
            history = model.fit(X, Y, **options)
        else:
            trainer = Trainer(
                model, loss="mse", optimizer=optimizer, strategy="default"
            )
            history = trainer.fit(X, Y, **options)
        found.append([*history.history["val_loss"], model.get_weights()[0]])
    for expected, value in zip(*found, strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-5)


def averaging(strategy="default", **options):
    return Trainer(
        net(),
        loss="mse",
        optimizer=SGD(0.1),
        strategy=STRATEGIES[strategy](),
        ema_momentum=0.9,
        batch_size=16,
        **options,
    )


class Zeros(keras.callbacks.Callback):
    """Writes weights while a run goes on."""

    def on_epoch_end(self, epoch, logs=None):
        weights = self.model.get_weights()
        self.model.set_weights([0 * weight for weight in weights])


@pytest.mark.parametrize("strategy", SOME)
def test_averages_follow_weights_that_others_write(strategy, tmp_path):
    zero = pytest.approx(np.mean(Y**2), rel=1e-5)
    trainer = averaging(strategy)
    trainer.fit(X, Y, **EPOCHS)
    averaged = trainer.evaluate(X, Y)["loss"]
    trainer.save(tmp_path / "a.weights.h5")
    assert trainer.evaluate(X, Y)["loss"] == averaged
    model = trainer.model
    model.set_weights([0 * weight for weight in model.get_weights()])
    assert trainer.evaluate(X, Y)["loss"] == zero
    trainer.model.load_weights(tmp_path / "a.weights.h5")
    assert trainer.evaluate(X, Y)["loss"] == pytest.approx(averaged)
    trainer.fit(X, Y, **EPOCHS, callbacks=[Zeros()])
    assert trainer.evaluate(X, Y)["loss"] == zero


@pytest.mark.parametrize(
    "callback",
    [
        lambda: keras.callbacks.EarlyStopping(restore_best_weights=True),
        lambda: keras.callbacks.ModelCheckpoint("a.keras", save_best_only=True),
    ],
)
def test_what_chooses_by_averages_and_keeps_others_is_refused(callback):
    with pytest.raises(UserError, match="the callback Checkpoint keep"):
        averaging().fit(
            X, Y, validation_data=(X, Y), callbacks=[callback()], verbose=0
        )

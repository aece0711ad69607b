"""Which compiled form steps have, and that a form changes no random number."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.helpers import linear, lines, make_trainer
from tests.sets import long, one_in, ordinary
from trainer import Callback, Guard, Trainer, UserError
from trainer_plugins import Checkpoint, JsonLines

FORMS = ("graph", "xla", "xla_stack")
# From here on `auto` follows the rule.
SWITCH = 500
_RANDOM = np.random.default_rng(0)
X = _RANDOM.normal(size=(80, 32)).astype("float32")
Y = _RANDOM.integers(0, 10, 80).astype("int32")


def network():
    return keras.Sequential(
        [
            keras.Input((32,)),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(10),
        ]
    )


def make(model=network, **options):
    return Trainer(
        **{
            "model": model,
            "loss": keras.losses.SparseCategoricalCrossentropy(
                from_logits=True
            ),
            "optimizer": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
            "data": lambda split: (X, Y),
            "batch_size": 8,
            "metrics": ["accuracy"],
            "strategy": "default",
            **options,
        }
    )


def weights(trainer):
    return [np.asarray(one) for one in trainer.model.get_weights()]


def written(folder):
    """The bytes of metrics.jsonl, but for times."""
    return json.dumps(lines(folder))


def train(folder, steps, made=None):
    """Trains to a step, by a new Trainer or one that goes on."""
    made = make() if made is None else made
    callbacks = [JsonLines(), Checkpoint(every=250)]
    made.train(steps, model_dir=str(folder), callbacks=callbacks)
    return made


class Masks(keras.Model):
    """Its weight is made of all masks, so equal bytes mean equal masks."""

    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(16, activation="relu")
        self.drop = keras.layers.Dropout(0.5)
        self.out = keras.layers.Dense(10)

    def build(self, shape):
        self.seen = self.add_weight(
            shape=(8, 32), trainable=False, initializer="zeros"
        )
        self.hidden.build((None, 32))
        self.out.build((None, 16))

    def call(self, x, training=False):
        if training:
            mask = self.drop(tf.ones((8, 32)), training=True)
            # Exact: two bits more for each of 2 x 2 masks.
            self.seen.assign(self.seen * 0.5 + mask)
        return self.out(self.drop(self.hidden(x), training=training))


def test_no_form_is_another_experiment():
    """All drop the same, and come to the same weights."""
    masks, found = [], []
    for form in FORMS:
        made = make(Masks, jit_compile=form)
        made.train(50)
        masks.append(made.model.seen.numpy().tobytes())
        found.append(weights(made))
    assert masks[0] == masks[1] == masks[2]
    assert any(masks[0])
    for other in found[1:]:
        for one, its in zip(found[0], other, strict=True):
            np.testing.assert_allclose(its, one, rtol=0, atol=1e-6)


def several(seed):
    """Of each kind of number some: other bits, or another use of them."""
    return tf.concat(
        [
            keras.random.uniform((33,), seed=seed),
            tf.cast(keras.random.randint((9,), 0, 1000, seed=seed), "float32"),
            keras.random.normal((33,), seed=seed),
        ],
        0,
    )


@pytest.mark.parametrize(
    "draw",
    ordinary(
        [
            several,
            lambda seed: keras.random.uniform((1 << 12,), seed=seed),
            lambda seed: keras.random.uniform(
                (1 << 12,), dtype="bfloat16", seed=seed
            ),
            lambda seed: keras.random.uniform(
                (33,), dtype="float16", seed=seed
            ),
            lambda seed: keras.random.dropout(tf.ones((7, 9)), 0.3, seed=seed),
            lambda seed: keras.random.randint((99,), 0, 1000, seed=seed),
            lambda seed: keras.random.shuffle(tf.range(50.0), seed=seed),
            lambda seed: keras.random.normal((4097,), seed=seed),
        ],
        [several],
    ),
)
def test_draws_are_those_of_the_graph(draw):
    class Noise(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.seed = keras.random.SeedGenerator(1)

        def build(self, shape):
            size = keras.ops.size(draw(1))
            self.seen = self.add_weight(
                shape=(int(size),), trainable=False, initializer="zeros"
            )

        def call(self, x, training=False):
            if training:
                drawn = tf.cast(draw(self.seed), "float32")
                self.seen.assign(tf.reshape(drawn, [-1]))
            return x

    found = []
    for form in FORMS:
        noise = Noise()
        made = make_trainer(
            lambda noise=noise: keras.Sequential(
                [keras.Input((3,)), noise, keras.layers.Dense(1)]
            ),
            jit_compile=form,
        )
        made.train(3)
        found.append(noise.seen.numpy())
    assert found[0].any()
    for other in found[1:]:
        # Only normal numbers, of XLA's logarithm, may round differently.
        np.testing.assert_allclose(other, found[0], rtol=0, atol=3e-6)


class Parameterized(Trainer):
    """Draws what XLA draws otherwise, and in the graph alike."""

    def per_example_loss(self, x, y, y_pred):
        noise = tf.random.stateless_truncated_normal(tf.shape(y_pred), (1, 2))
        return tf.reduce_sum((y - y_pred + 0.0 * noise) ** 2, 1)


_noise = tf.function(lambda shape, seed: keras.random.normal(shape, seed=seed))


class TracedBefore(Trainer):
    """Calls a function of its own, whose trace knows nothing of XLA."""

    def per_example_loss(self, x, y, y_pred):
        noise = _noise((8, 1), 5)
        return tf.reduce_sum((y - y_pred + 0.0 * noise) ** 2, 1)


@pytest.mark.parametrize(
    ("kind", "operation"),
    [
        (Parameterized, "StatelessTruncatedNormalV2"),
        (TracedBefore, "StatelessRandomGetKeyCounter"),
    ],
)
def test_a_draw_that_stays_another_is_found(kind, operation, caplog):
    caplog.set_level("INFO", "absl")
    _noise((8, 1), 5)
    with pytest.raises(
        UserError, match=f"draws different numbers for {operation}"
    ):
        make_trainer(linear, kind=kind, jit_compile="xla").train(2)
    made = make_trainer(linear, kind=kind)
    made.train(SWITCH + 5)
    assert made._run.spec.form == "graph"
    assert "compiled as graph, because XLA draws" in caplog.text
    assert operation in caplog.text


def test_equal_runs_end_in_equal_bytes_however_they_were_cut(tmp_path):
    whole = train(tmp_path / "whole", 600)
    assert whole._run.spec.form == "xla_stack"
    # A Trainer goes on across the switch, and a new one after it.
    first = train(tmp_path / "cut", 300)
    assert first._run.spec.form == "graph"
    train(tmp_path / "cut", 550, first)
    cut = train(tmp_path / "cut", 600)
    for one in (first, cut):
        assert one._run.spec.form == "xla_stack"
    for one, its in zip(weights(whole), weights(cut), strict=True):
        assert one.tobytes() == its.tobytes()
    assert written(tmp_path / "cut") == written(tmp_path / "whole")


def test_a_run_rolls_back_across_the_switch(tmp_path):
    class Broken(Callback):
        """Breaks a weight once, after the switch."""

        broken = False

        def on_train_batch_end(self, batch, logs=None):
            if self.run.step == 600 and not self.broken:
                self.broken = True
                first = self.run.model.weights[0]
                first.assign(first * np.nan)

    class Forms(Callback):
        def __init__(self):
            super().__init__()
            self.seen = {}

        def on_save(self, step, logs):
            form = self.run.spec.form
            self.seen.setdefault(step, []).append(str(form))

    forms = Forms()
    run = make(guard=Guard(action="roll_back", max_gradient_norm=1e6))
    run.train(
        700,
        model_dir=str(tmp_path),
        callbacks=[Checkpoint(every=400), Broken(), forms],
    )
    assert forms.seen[500] == ["graph", "graph"]
    assert forms.seen[600] == ["xla_stack", "xla_stack"]


def test_a_host_loop_ends_where_the_form_changes():
    ends = []

    class Ends(Callback):
        def on_save(self, step, logs):
            ends.append(step)

    data = np.tile(X, (100, 1)), np.tile(Y, 100)
    made = make(data=lambda split: data)
    made.train(700, steps_per_loop=300, callbacks=[Ends()])
    assert ends == [300, SWITCH, 600, 700]


class Uncompiled(Trainer):
    """XLA has no such operation."""

    def per_example_loss(self, x, y, y_pred):
        some = tf.where(tf.reduce_sum(x, 1) > 0.0)
        count = tf.cast(tf.shape(some)[0], tf.float32)
        error = tf.reduce_sum((y - y_pred) ** 2, 1)
        text = tf.strings.as_string(count)
        return error * tf.strings.to_number(text)


class Checked(Trainer):
    """Checks what XLA would leave unchecked."""

    def per_example_loss(self, x, y, y_pred):
        tf.debugging.assert_less(tf.reduce_max(x), 100.0)
        return tf.reduce_sum((y - y_pred) ** 2, 1)


class Astray(Trainer):
    """Something else comes out in one form."""

    def per_example_loss(self, x, y, y_pred):
        factor = 2.0 if self._spec.form == "xla_stack" else 1.0
        return factor * tf.reduce_sum((y - y_pred) ** 2, 1)


class Convolution(Trainer):
    def forward(self, x, *, training):
        wide = tf.nn.conv1d(x[:, :, None], tf.ones((1, 1, 1)), 1, "SAME")
        return self.model(wide[:, :, 0], training=training)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        long(Uncompiled, "XLA cannot compile"),
        (Checked, "its checks (Assert)"),
        long(Astray, "different losses"),
        (Convolution, "convolutions"),
    ],
)
def test_why_a_step_stays_a_graph(kind, why, tmp_path, caplog):
    caplog.set_level("INFO", "absl")
    # What a run that goes on says is of the checkpoint, whatever the reason.
    ends = [SWITCH + 5] + [SWITCH + 10] * (kind in (Uncompiled, Checked))
    for steps in ends:
        caplog.clear()
        made = make_trainer(linear, kind=kind)
        made.train(steps, model_dir=str(tmp_path), callbacks=[Checkpoint()])
        assert made._run.spec.form == "graph"
        (line,) = [m for m in caplog.messages if "compiled as graph" in m]
        assert why in line
    if kind is Checked:
        # Whoever names a form gets it.
        made = make_trainer(linear, kind=kind, jit_compile=True)
        made.train(2)
        assert made._run.spec.form == "xla"


@pytest.mark.parametrize("form", one_in(2, ["xla", "xla_stack"]))
def test_a_form_that_is_asked_for_and_fails_is_a_sentence(form):
    trainer = make_trainer(linear, kind=Uncompiled, jit_compile=form)
    with pytest.raises(UserError, match=f"compiled as {form}: XLA cannot"):
        trainer.train(3)
    assert trainer.step == 0


@pytest.mark.parametrize(
    ("options", "form"),
    [
        ({"accumulation_steps": 2}, "xla"),
        long({"run_eagerly": True}, "graph"),
        # A dataset would have to be read once more.
        (
            {
                "data": lambda split: tf.data.Dataset.from_tensor_slices(
                    (X[:, :3], X[:, :1])
                ).batch(8)
            },
            "xla",
        ),
    ],
)
def test_the_form_depends_on_strategy_and_data(options, form):
    made = make_trainer(linear, **options)
    made.train(SWITCH + 5)
    assert made._run.spec.form == form


def test_a_second_call_traces_nothing(tmp_path):
    class Counted(keras.layers.Layer):
        calls = 0

        def call(self, x):
            Counted.calls += 1
            return x

    made = make_trainer(
        lambda: keras.Sequential(
            [keras.Input((3,)), Counted(), keras.layers.Dense(1)]
        )
    )
    made.train(SWITCH + 5)
    before = Counted.calls
    made.train(SWITCH + 10)
    assert Counted.calls == before


class Bounded(keras.layers.Layer):
    """Has a check that fails, once it is asked for."""

    check = None

    def call(self, x):
        return x if self.check is None else self.check(x)


def bounded():
    return keras.Sequential([*linear().layers, Bounded()])


def below(x):
    with tf.control_dependencies([tf.debugging.assert_less(x, -1e9)]):
        return tf.identity(x)


def finite(x):
    return x + 0 * tf.debugging.check_numerics(x / 0.0, "not finite")


@pytest.mark.parametrize("check", ordinary([below, finite], [below]))
def test_a_run_that_goes_on_keeps_the_checks_of_its_step(
    check, tmp_path, monkeypatch, caplog
):
    def run(steps):
        made = make_trainer(bounded, jit_compile="auto")
        callbacks = [Checkpoint(every=SWITCH)]
        made.train(steps, model_dir=str(tmp_path), callbacks=callbacks)

    with caplog.at_level("INFO"):
        run(SWITCH + 10)
    assert "are compiled as xla" in caplog.text
    monkeypatch.setattr(Bounded, "check", staticmethod(check))
    with pytest.raises(tf.errors.InvalidArgumentError):
        run(SWITCH + 20)


@pytest.mark.parametrize("check", ordinary([below, finite], [finite]))
def test_a_trace_of_its_own_has_a_form_of_its_own(check, monkeypatch, caplog):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(66, 3)).astype("float32")
    made = make_trainer(bounded, jit_compile="auto", data=None)
    with caplog.at_level("INFO"):
        made.fit(x, x[:, :1], batch_size=8, epochs=60, verbose=0)
    assert "are compiled as xla" in caplog.text
    monkeypatch.setattr(Bounded, "check", staticmethod(check))
    # Batches of another size are traced anew, and their rows are not known.
    with pytest.raises(tf.errors.InvalidArgumentError):
        made.fit(x, x[:, :1], batch_size=16, epochs=2, verbose=0)

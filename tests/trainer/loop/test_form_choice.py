"""How a run gets the compiled form of its step, and keeps it."""

import json
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import config

from tests.helpers import linear, make_trainer
from tests.sets import long, one_in
from trainer import Guard, Trainer, UserError
from trainer.loop import form_cache
from trainer.loop.form_choice import RECORD
from trainer.loop.loop import Loop
from trainer.step.forms import Form
from trainer_plugins.callbacks.checkpoint import Checkpoint

# More than any test makes: what matters is how many are left.
MANY = 10_000_000


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The user's cache directory, empty."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder / "trainer" / "forms"


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """What a run of `make` has left in its cache."""
    folder = tmp_path_factory.mktemp("measured")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        chosen(make())
    return folder


@pytest.fixture
def cached(cache, measured):
    """The one file of the cache, after a run of `make`."""
    shutil.copytree(measured, cache.parents[1])
    (path,) = cache.iterdir()
    return path


def make(**options):
    return make_trainer(linear, optimizer="adam", **options)


def chosen(trainer, steps=MANY, **options):
    """The choice that a run makes before its first step."""
    loop = Loop(trainer, steps=steps, evaluate=False, **options)
    with loop.ready():
        return loop.choice


def write(folder, **changes):
    record = {
        "form": "xla",
        "steps_per_loop": 70,
        "why": "a test says so",
        "steps_per_second": {"xla": 5.0},
        **changes,
    }
    folder.mkdir(exist_ok=True)
    (folder / RECORD).write_text(json.dumps(record))


def state_of(trainer):
    parts = trainer.parts
    every = [*trainer.model.variables, *trainer.optimizer.variables, parts.step]
    every += parts.metrics.carried_variables
    return [np.asarray(variable).tobytes() for variable in every]


WITHOUT_ITS_BEST = json.dumps(
    {"best": "xla", "steps_per_second": {}, "why": "", "is_complete": True}
)


class Latest(keras.metrics.Metric):
    """Does not add up: its state is carried from step to step."""

    def __init__(self, **options):
        super().__init__(**options)
        self.latest = self.add_variable((), "zeros", name="latest")

    def update_state(self, y, y_pred, sample_weight=None):
        self.latest.assign(keras.ops.max(y_pred) + 1.0)

    def result(self):
        return self.latest


def test_a_long_run_takes_the_fastest_form_and_nothing_changes(cache):
    options = {"metrics": [Latest], "ema_momentum": 0.9, "batch_size": 64}
    trainer = make(**options)
    trainer.build()
    before = state_of(trainer)[:-2]
    choice = chosen(trainer)
    rates = choice.steps_per_second
    assert set(rates) == set(Form)
    best = max(rates, key=rates.get)
    # The graph is kept where nothing is clearly faster.
    assert choice.form in (best, Form.GRAPH)
    if rates[best] > 1.1 * rates[Form.GRAPH]:
        assert choice.form is best
    assert choice.steps_per_loop in (100, 200, 500, 1000, 2000)
    assert trainer.accounts.summary()["calibration"] > 0
    assert trainer.step == 0
    found = state_of(trainer)
    assert found[: len(before)] == before
    assert all(not any(state) for state in found[len(before) :])
    # The next run on this machine does not measure.
    again = make(**options)
    assert chosen(again).form is choice.form
    assert again.accounts.summary()["calibration"] == 0
    assert len(list(cache.iterdir())) == 1


def test_a_short_run_is_a_graph_and_measures_nothing(tmp_path, cache):
    trainer = make()
    trainer.train(20, model_dir=str(tmp_path / "run"))
    assert trainer.compiled_form is Form.GRAPH
    assert trainer.accounts.summary()["calibration"] == 0
    record = json.loads((tmp_path / "run" / RECORD).read_text())
    assert record["form"] == "graph"
    assert record["steps_per_loop"] == 100
    assert "20 steps" in record["why"]
    assert not cache.exists()


def test_a_run_keeps_its_form(tmp_path, cache):
    write(tmp_path / "run")
    trainer = make()
    trainer.train(3, model_dir=str(tmp_path / "run"))
    assert trainer.compiled_form is Form.XLA
    assert trainer.loop.state.steps_per_loop == 70
    # Longer now, but it has begun like this; so does the same Trainer.
    assert chosen(trainer, model_dir=str(tmp_path / "run")).form is Form.XLA
    assert chosen(trainer).form is Form.XLA
    assert trainer.accounts.summary()["calibration"] == 0


def test_what_is_asked_for_goes_before_what_is_recorded(tmp_path):
    write(tmp_path / "run")
    trainer = make(jit_compile="graph")
    trainer.train(3, model_dir=str(tmp_path / "run"), steps_per_loop=2)
    assert trainer.compiled_form is Form.GRAPH
    assert trainer.loop.state.steps_per_loop == 2
    record = json.loads((tmp_path / "run" / RECORD).read_text())
    assert record["form"] == "graph"


def test_a_run_from_before_there_were_forms_stays_a_graph(tmp_path):
    run = str(tmp_path / "run")
    make().train(3, model_dir=run, callbacks=[Checkpoint()])
    (tmp_path / "run" / RECORD).unlink()
    choice = chosen(make(), model_dir=run, callbacks=[Checkpoint()])
    assert choice.form is Form.GRAPH
    assert "begun" in choice.why


def test_a_recorded_form_that_cannot_be_had_is_a_warning(tmp_path, caplog):
    write(tmp_path / "run", form="xla_stack")
    trainer = make(accumulation_steps=2)
    choice = chosen(trainer, model_dir=str(tmp_path / "run"))
    assert choice.form is Form.GRAPH
    assert "compiled as xla_stack, which is not possible here" in caplog.text


@pytest.mark.parametrize(
    "change",
    [
        {"form": "fast"},
        {"steps_per_loop": 0},
        {"steps_per_loop": True},
        {"why": None},
        {"more": 1},
    ],
)
def test_a_damaged_record_is_a_sentence(tmp_path, change):
    write(tmp_path / "run", **change)
    (name,) = change
    with pytest.raises(UserError, match=rf"form\.json.*{name}"):
        chosen(make(), 5, model_dir=str(tmp_path / "run"))


def test_a_torn_record_is_a_sentence(tmp_path):
    (tmp_path / RECORD).write_text('{"form": ')
    with pytest.raises(UserError, match=r"form\.json.*the file"):
        chosen(make(), 5, model_dir=str(tmp_path))


def test_a_record_that_is_a_link_is_refused(tmp_path):
    write(tmp_path / "elsewhere")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / RECORD).symlink_to(tmp_path / "elsewhere" / RECORD)
    with pytest.raises(UserError, match=r"form\.json.*link"):
        chosen(make(), 5, model_dir=str(tmp_path / "run"))


def test_a_deterministic_run_is_never_timed():
    tf.config.experimental.enable_op_determinism()
    try:
        choice = chosen(make())
    finally:
        config.disable_op_determinism()
    assert choice.form is Form.GRAPH
    assert choice.steps_per_second == {}


@pytest.mark.parametrize(
    ("value", "form"),
    one_in(
        2,
        [
            (True, Form.XLA),
            (False, Form.GRAPH),
            ("graph", Form.GRAPH),
            ("xla", Form.XLA),
            ("xla_stack", Form.XLA_STACK),
        ],
    ),
)
def test_forms_by_name(value, form):
    assert chosen(make(jit_compile=value)).form is form


@pytest.mark.parametrize("value", ["fast", "True", 1, None])
def test_others_are_refused(value):
    with pytest.raises(UserError, match=r"jit_compile.*'xla_stack'"):
        make(jit_compile=value)


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
        factor = 2.0 if self.compiled_form is Form.XLA_STACK else 1.0
        return factor * tf.reduce_sum((y - y_pred) ** 2, 1)


@pytest.mark.parametrize(
    ("kind", "left"),
    [long(Uncompiled, {Form.GRAPH}), (Astray, {Form.GRAPH, Form.XLA})],
)
def test_a_form_that_fails_is_left_out(kind, left, cache):
    choice = chosen(make(kind=kind))
    assert set(choice.steps_per_second) == left
    assert choice.form in left


def test_a_form_that_would_lose_a_check_is_not_tried(cache):
    trainer = make(kind=Checked)
    choice = chosen(trainer)
    assert choice.form is Form.GRAPH
    assert "checks (Assert)" in choice.why
    assert choice.steps_per_second == {}
    # Whoever names it gets it.
    assert chosen(make(kind=Checked, jit_compile=True)).form is Form.XLA


@pytest.mark.parametrize("form", ["xla", "xla_stack"])
def test_a_form_that_is_asked_for_and_fails_is_a_sentence(tmp_path, form):
    trainer = make(kind=Uncompiled, jit_compile=form)
    with pytest.raises(UserError, match=f"compiled as {form}.*XLA cannot"):
        trainer.train(3, model_dir=str(tmp_path / "run"))
    assert not (tmp_path / "run" / RECORD).exists()
    assert trainer.step == 0


class Remembering(Trainer):
    """Keeps a variable of which Keras knows nothing."""

    def __init__(self, **options):
        super().__init__(**options)
        self.seen = tf.Variable(0.0)

    def per_example_loss(self, x, y, y_pred):
        self.seen.assign_add(1.0)
        return tf.reduce_sum((y - y_pred) ** 2, 1)


def test_what_keras_does_not_track_is_set_back(cache):
    trainer = make(kind=Remembering)
    assert chosen(trainer).steps_per_second
    assert trainer.seen.numpy() == 0.0


@pytest.mark.long
def test_a_fault_that_a_measurement_found_is_none_of_the_run(cache):
    x = np.ones((64, 3), "float32")
    x[40] = np.nan
    trainer = make(guard=Guard(), data=lambda split: (x, x[:, :1]))
    assert chosen(trainer).steps_per_second
    assert trainer.parts.watch.fault() is None


@pytest.mark.long
def test_a_cached_form_that_fails_is_measured_again(cached, monkeypatch):
    found = json.loads(cached.read_text())
    # As if the key had not told two Trainers apart.
    monkeypatch.setattr(form_cache, "key", lambda *_: cached.stem)
    cached.write_text(json.dumps({**found, "best": "xla_stack"}))
    choice = chosen(make(kind=Uncompiled))
    assert set(choice.steps_per_second) == {Form.GRAPH}


def test_each_run_directory_has_a_record(tmp_path):
    trainer = make(jit_compile="xla")
    trainer.train(2)
    trainer.train(4, model_dir=str(tmp_path))
    assert json.loads((tmp_path / RECORD).read_text())["form"] == "xla"


def test_a_record_goes_before_what_the_trainer_did_elsewhere(tmp_path):
    write(tmp_path / "run")
    trainer = make()
    trainer.train(2)
    assert trainer.compiled_form is Form.GRAPH
    trainer.train(4, model_dir=str(tmp_path / "run"))
    assert trainer.compiled_form is Form.XLA


@pytest.mark.parametrize(
    ("options", "length", "logs"),
    one_in(
        2,
        [
            ({}, 700, 700),
            ({"steps_per_loop": 300}, 300, 100),
            ({"log_every": 40}, 40, 40),
            ({"log_every": "1h"}, 700, None),
            ({"log_every": 1000}, 700, 1000),
            ({"log_every": 1000, "steps_per_loop": 300}, 300, 1000),
        ],
    ),
)
def test_logs_come_as_often_as_they_are_asked_for(
    tmp_path, options, length, logs
):
    write(tmp_path / "run", steps_per_loop=700)
    loop = Loop(
        make(),
        steps=MANY,
        evaluate=False,
        model_dir=str(tmp_path / "run"),
        **options,
    )
    with loop.ready():
        assert loop.state.steps_per_loop == length
        assert loop.reporter.tickers["log"].period.steps == logs


def test_no_batch_event_of_keras_depends_on_a_clock(tmp_path):
    write(tmp_path / "run", steps_per_loop=500)

    class Batches(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            pass

    loop = Loop(
        make(),
        steps=MANY,
        evaluate=False,
        log_every=1000,
        model_dir=str(tmp_path / "run"),
        callbacks=[Batches()],
    )
    with loop.ready():
        assert loop.state.steps_per_loop == 100


def test_tracing_alone_makes_no_steps(tmp_path, cache):
    trainer = make()
    loop = Loop(trainer, steps=MANY, evaluate=False)
    loop.trace()
    assert trainer.accounts.summary()["calibration"] == 0
    assert not cache.exists()
    write(tmp_path / "run")
    trainer = make()
    run = str(tmp_path / "run")
    with Loop(trainer, steps=MANY, evaluate=False, model_dir=run).ready():
        assert trainer.compiled_form is Form.XLA


@pytest.mark.long
def test_a_damaged_cache_is_measured_again(cached):
    path = cached
    assert form_cache.load(path.stem) is not None
    for content in (b"", b"{", b'{"best": "fast"}', b"[]", b"\xff\x00"):
        path.write_bytes(content)
        assert form_cache.load(path.stem) is None
    path.write_text(WITHOUT_ITS_BEST)
    trainer = make()
    assert chosen(trainer).steps_per_second
    assert trainer.accounts.summary()["calibration"] > 0
    assert path.read_text() != WITHOUT_ITS_BEST
    path.unlink()
    path.mkdir()
    assert form_cache.load(path.stem) is None


def test_without_a_cache_nothing_is_written(cache):
    chosen(make(), form_cache=False)
    assert not cache.exists()


@pytest.mark.long
def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert chosen(make()).steps_per_second

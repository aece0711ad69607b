"""How long host loops are, where the graph is the only form."""

import numpy as np
import pytest
import tensorflow as tf

from tests.helpers import linear, make_trainer
from trainer import Trainer
from trainer.loop import length_timing
from trainer.loop.form_choice import _LENGTHS, STEPS_PER_LOOP
from trainer.loop.form_trial import Contender
from trainer.loop.length_timing import told
from trainer.loop.loop import Loop
from trainer.step.forms import Form
from trainer_plugins.strategies.central_storage import CentralStorage

MANY = 10_000_000


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "trainer" / "forms"


class OnlyGraph(CentralStorage):
    """A strategy that XLA compiles nothing of."""

    def why_not_compiled(self):
        return "a test says so"


def make(**options):
    return make_trainer(linear, strategy=OnlyGraph(), **options)


def chosen(trainer, **options):
    loop = Loop(trainer, steps=MANY, evaluate=False, **options)
    with loop.ready():
        return loop.choice


def test_it_is_measured_once_and_nothing_of_the_run_changes(cache):
    trainer = make()
    trainer.build()
    before = [np.array(w) for w in trainer.model.get_weights()]
    choice = chosen(trainer)
    assert choice.form is Form.GRAPH
    assert choice.steps_per_loop in (*_LENGTHS, STEPS_PER_LOOP)
    assert list(choice.steps_per_second) == [Form.GRAPH]
    assert trainer.step == int(trainer.optimizer.iterations.numpy()) == 0
    for now, then in zip(trainer.model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(now, then)
    assert len(list(cache.iterdir())) == 1
    again = make()
    rate = chosen(again).steps_per_second
    assert rate == choice.steps_per_second
    assert again.accounts.summary().get("calibration", 0.0) == 0.0


def test_a_length_that_is_given_is_not_measured(cache):
    choice = chosen(make(), steps_per_loop=7)
    assert choice.steps_per_second == {}
    assert not cache.exists()


class Printing(Trainer):
    def forward(self, x, *, training):
        tf.print("seen")
        return super().forward(x, training=training)


def test_a_step_that_prints_is_not_made_for_it(capfd):
    choice = chosen(make(kind=Printing))
    assert choice.steps_per_loop == STEPS_PER_LOOP
    assert "call Python (PrintV2)" in choice.why
    assert "seen" not in "".join(capfd.readouterr())


class Processes:
    """Two processes, of which the other one gives these flags."""

    def __init__(self, *, is_chief, others):
        self.is_chief, self._others = is_chief, others

    def any_of(self, flags):
        return [a or b for a, b in zip(flags, self._others, strict=True)]


@pytest.mark.parametrize("number", [0, 1, 500, 2000, 2**31 - 1])
def test_the_chiefs_number_counts(number):
    bits = [bool(number >> i & 1) for i in range(31)]
    assert told(Processes(is_chief=False, others=bits), 77) == number
    nothing = [False] * 31
    assert told(Processes(is_chief=True, others=nothing), number) == number


@pytest.mark.parametrize(
    ("call_seconds", "step_seconds", "rate"),
    [
        # What a call takes in any case is not taken for that of its steps.
        (0.18, 0.01, 84.7),
        (0.0, 0.003, 333.0),
        (0.0, 0.5, 2.0),
        (0.02, 0.5, 1.92),
    ],
)
def test_more_steps_are_measured_while_that_makes_them_faster(
    monkeypatch, call_seconds, step_seconds, rate
):
    class Clocked(Contender):
        def time(self, steps):
            super().time(steps)
            seconds = call_seconds / steps + step_seconds
            self.seconds = min(seconds, made.setdefault("least", seconds))
            made["least"] = self.seconds
            return seconds

    made = {}
    monkeypatch.setattr(length_timing, "Contender", Clocked)
    found = chosen(make()).steps_per_second[Form.GRAPH]
    assert found == rate

"""`Checkpoint(load_best=True)`: what a run ends with is its best."""

import json

import keras
import numpy as np
import pytest

from tests.helpers import make_trainer, read_lines, saved_steps
from tests.trainer.cli.tiny import TINY, run_trainer
from trainer_plugins import Checkpoint, JsonLines


def worsening():
    """Learns for 8 steps, then with a rate that is far too high."""
    rate = keras.optimizers.schedules.PiecewiseConstantDecay([8], [0.1, 3.0])
    return keras.optimizers.SGD(rate)


def model():
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(1, name="out")], name="line"
    )


class Ending(keras.callbacks.Callback):
    """Keeps the weights that other callbacks find at the end."""

    def on_train_end(self, logs=None):
        self.found = self.model.get_weights()


def train(folder, steps=14, *callbacks, **options):
    # Optimizers are numbered, and checkpoints hold their names.
    keras.utils.clear_session(free_memory=False)
    trainer = make_trainer(
        model, optimizer=worsening, jit_compile=False, seed=1
    )
    trainer.train_and_evaluate(
        steps,
        model_dir=str(folder),
        callbacks=[JsonLines(), *callbacks, Checkpoint(**options)],
        eval_every=2,
        verbose=0,
    )
    return trainer


def losses(folder):
    return {
        line["step"]: line["loss"]
        for line in read_lines(folder / "metrics.jsonl")
        if line["split"] == "eval"
    }


def test_the_best_weights_are_there_at_the_end(tmp_path):
    ending = Ending()
    trainer = train(tmp_path, 14, ending, load_best=True, every=5)
    values = losses(tmp_path)
    best = min(values, key=values.get)
    assert best == 8
    assert best in saved_steps(tmp_path)
    assert trainer.evaluate()["loss"] == pytest.approx(values[best])
    assert values[14] > 10 * values[best]
    np.testing.assert_array_equal(
        ending.found[0], trainer.model.get_weights()[0]
    )
    # The run itself is where it was.
    assert trainer.step == saved_steps(tmp_path)[-1] == 14


# Learns for 8 steps, then with a rate that is far too high.
TEXT = (
    TINY.replace("run.strategy = 'one_device'", "")
    + "SGD.learning_rate = @schedules.PiecewiseConstantDecay()\n"
    "schedules.PiecewiseConstantDecay.boundaries = [8]\n"
    "schedules.PiecewiseConstantDecay.values = [0.1, 3.0]\n"
    "run.eval_every = 2\nrun.train_steps = 14\n"
    "Checkpoint.load_best = True\n"
    "run.callbacks = [@JsonLines(), @Export(), @Checkpoint()]\n"
    "Export.formats = 'keras'\n"
)


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["default", "mirrored"])
def test_evaluation_and_export_take_the_best(tmp_path, strategy):
    flags = ["--model_dir=run", f"--strategy={strategy}"]
    if strategy == "mirrored":
        flags.append("--virtual_devices=2")
    done = run_trainer(tmp_path, *flags, text=TEXT)
    assert done.returncode == 0, done.stderr
    best = min(losses(tmp_path / "run").values())
    done = run_trainer(tmp_path, "--mode=eval", *flags, text=TEXT)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split("loss: ")[1].split()[0]) == pytest.approx(
        best, rel=1e-4
    )
    weights = keras.models.load_model(tmp_path / "run/export/model.keras")
    exported = weights.get_weights()
    done = run_trainer(tmp_path, "--mode=export", *flags, text=TEXT)
    assert done.returncode == 0, done.stderr
    again = keras.models.load_model(tmp_path / "run/export/model.keras")
    for one, other in zip(exported, again.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["exit_reason"] == "done"

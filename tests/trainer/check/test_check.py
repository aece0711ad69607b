"""`--mode=check`: what it says of a run, and that it leaves no trace."""

import functools
import hashlib
import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.sets import long
from tests.trainer.cli.tiny import HERE, TINY, run_trainer
from trainer import Diverged, Guard, Trainer, UserError
from trainer.check.costs import step_costs
from trainer.check.programs import RunPrograms
from trainer.experiment import build
from trainer_plugins.callbacks.checkpoint import Checkpoint
from trainer_plugins.loggers.json_lines import JsonLines
from trainer_plugins.loggers.tensorboard import TensorBoard

SAVES = TINY + "run.callbacks = [@Checkpoint(), @JsonLines(), @Export()]\n"


def digests(folder):
    """What a folder holds: by path, a file's digest."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(
            path.read_bytes()
        ).hexdigest()
        if path.is_file()
        else "a folder"
        for path in folder.rglob("*")
    }


def report(folder):
    return json.loads((folder / "check.json").read_text())


def test_a_new_run(tmp_path):
    done = run_trainer(tmp_path, "--mode=check", "--model_dir=run", text=SAVES)
    assert done.returncode == 0, done.stderr
    assert "would start      yes" in done.stdout
    run = tmp_path / "run"
    assert list(digests(run)) == ["check.json"]
    found = report(run)
    assert found["would_start"] is True
    assert found["run"]["begins_at_step"] == 0
    assert found["run"]["ends_at_step"] == 8
    model = found["model"]
    assert model["parameters"] == model["trainable_parameters"] == 5
    assert model["model_memory"] == 5 * 4
    # SGD has a counter and a learning rate.
    assert model["optimizer_memory"] <= 16
    steps = found["steps"]
    assert steps["steps_made"] >= 2
    assert steps["retraces"] == 0
    assert 0 < steps["loss"] < 10
    assert 0 < found["evaluation"]["loss"] < 10
    assert found["checkpoint"]["restores_what_was_saved"] is True
    assert found["data"]["examples_a_second"] > 0
    expected = found["expected_time"]
    assert expected["training"] == pytest.approx(8 / steps["steps_a_second"])
    assert found["verdict"]["unused_bindings"] == 0


def test_a_run_that_has_begun_stays_as_it_is(tmp_path):
    done = run_trainer(tmp_path, "--model_dir=run", text=SAVES)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "run"
    # What a save that was killed leaves behind, and a run removes.
    (run / "checkpoints" / "tmp_0123").mkdir()
    before = digests(run)
    arguments = ("--model_dir=run", "--train_steps=20")
    done = run_trainer(tmp_path, "--mode=check", *arguments, text=SAVES)
    assert done.returncode == 0, done.stderr
    assert report(run)["run"]["begins_at_step"] == 8
    after = digests(run)
    del after["check.json"]
    assert after == before
    # A checkpoint that does not fit is found, and an old report is replaced.
    text = SAVES + "linear.units = 2\n"
    done = run_trainer(tmp_path, "--mode=check", *arguments, text=text)
    assert done.returncode == 2
    found = report(run)
    assert found["would_start"] is False
    assert "The checkpoint is of another model" in found["error"]
    after = digests(run)
    del after["check.json"]
    assert after == before


def test_what_would_not_start(tmp_path):
    text = SAVES + "linear.units = 'x'\n"
    done = run_trainer(tmp_path, "--mode=check", "--model_dir=run", text=text)
    assert done.returncode in (1, 2)
    assert report(tmp_path / "run")["would_start"] is False


@pytest.mark.long
def test_several_replicas(tmp_path):
    done = run_trainer(
        tmp_path,
        "--mode=check",
        "--model_dir=run",
        "--strategy=mirrored",
        "--virtual_devices=2",
        "--allow_unused_bindings",
        text=SAVES + "reduction.kind = 'sum'\n",
    )
    assert done.returncode == 0, done.stderr
    found = report(tmp_path / "run")
    assert found["run"]["replicas"] == 2
    assert found["steps"]["retraces"] == 0
    assert found["steps"]["FLOP"] > 0
    assert found["verdict"]["unused_bindings"] == 1
    assert "reduction.kind (tiny.gin" in found["verdict"]["notes"][0]


@pytest.mark.long
@pytest.mark.parametrize(
    "task", ["multi_worker_mirrored@2", "parameter_server@1+1"]
)
def test_a_cluster(tmp_path, task):
    name, _, tasks = task.partition("@")
    workers, _, servers = tasks.partition("+")
    (tmp_path / "tiny.gin").write_text(SAVES)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "trainer.launch"),
            f"--num_workers={workers}",
            *([f"--num_ps={servers}"] if servers else []),
            *("--", "--gin_file=tiny.gin", "--mode=check"),
            *("--model_dir=run", f"--strategy={name}"),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": HERE},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert report(tmp_path / "run")["would_start"] is True


def make(**options):
    x = np.random.default_rng(0).random((64, 8), "float32")
    trainer = Trainer(
        **{
            "model": lambda: keras.Sequential(
                [
                    keras.Input((8,)),
                    keras.layers.Dense(16, activation="relu"),
                    keras.layers.Dense(1),
                ]
            ),
            "loss": "mse",
            "data": lambda split: (x, x[:, :1]),
            "batch_size": 32,
            "strategy": "default",
            **options,
        }
    )
    trainer.build()
    return step_costs(RunPrograms(trainer))


def costs(**options):
    return {row.name: row.value for row in make(**options)}


def test_costs_of_two_dense_layers():
    found = costs(optimizer="sgd")
    # Forward, and backward without the gradient of the input.
    matrices = 2 * 32 * (8 * 16 + 16 * 1)
    expected = 3 * matrices - 2 * 32 * 8 * 16
    assert expected < found["FLOP"] < 1.3 * expected
    # The hidden layer's activations, and the output's error; the rest of the
    # backward pass reads inputs and weights.
    assert 32 * 16 * 4 <= found["activation memory"] < 3 * 32 * 16 * 4
    halves = costs(optimizer="sgd", accumulation_steps=2)
    assert halves["FLOP"] == pytest.approx(found["FLOP"], rel=0.1)
    ratio = found["activation memory"] / halves["activation memory"]
    assert ratio == pytest.approx(2, rel=0.1)


class Pairs(keras.layers.Layer):
    equation = "bid,bjd->bij"

    def call(self, x):
        return tf.einsum(self.equation, x, x)


class PairsOfAnyRank(Pairs):
    equation = "...id,...jd->...ij"


@tf.function(input_signature=[tf.TensorSpec([None, None])])
def squared(x):
    return tf.matmul(x, x, transpose_b=True)


def of_any_shape(x):
    return tf.reduce_mean(squared(x[:, 0]), 1, keepdims=True)


def switch(x):
    return tf.switch_case(tf.size(x) % 2, [lambda: 2 * x, lambda: 3 * x])


@pytest.mark.parametrize(
    ("layer", "kind"),
    [
        (lambda: keras.layers.Lambda(lambda x: switch(x[:, 0])), "Case"),
        # Keras puts the loop into a function.
        (lambda: keras.layers.SimpleRNN(4), "While"),
        (lambda: keras.layers.Lambda(of_any_shape), "MatMul of unknown shapes"),
    ],
)
def test_what_is_not_counted_is_named(layer, kind):
    def model():
        parts = [keras.Input((6, 8)), layer(), keras.layers.Dense(1)]
        return keras.Sequential(parts)

    x = np.zeros((32, 6, 8), "float32")
    flop, *_ = make(
        model=model, data=lambda split: (x, x[:, 0, :1]), optimizer="sgd"
    )
    assert flop.name == "FLOP"
    assert "; not " in flop.note
    assert kind in flop.note


@pytest.mark.parametrize("pairs", [Pairs, long(PairsOfAnyRank)])
def test_products_are_counted(pairs):
    def model():
        inputs = keras.Input((6, 8))
        return keras.Model(inputs, keras.layers.Dense(1)(pairs()(inputs)))

    x = np.random.default_rng(0).random((64, 6, 8), "float32")
    found = costs(
        model=model, data=lambda split: (x, x[..., :1]), optimizer="sgd"
    )
    # Of the pairs only the forward pass: nothing before them is trained.
    pairs, dense = 2 * 32 * 6 * 6 * 8, 2 * 2 * 32 * 6 * 6
    assert pairs + dense < found["FLOP"] < 1.5 * (pairs + dense)


def check(folder, x, *, callbacks=(Checkpoint,), **options):
    def trainer(strategy):
        return Trainer(
            model=lambda: keras.Sequential(
                [keras.Input((4,)), keras.layers.Dense(1)]
            ),
            loss="mse",
            data=lambda split: (x, x[:, :1]),
            strategy=strategy,
            **options,
        )

    return build(
        mode="check",
        model_dir=str(folder / "run"),
        trainer=trainer,
        strategy="default",
        callbacks=[one() for one in callbacks],
    )


def test_a_function_is_counted_at_each_call():
    def product(x):
        # Traced anew, for the batch's fixed shape.
        return tf.function(lambda a: a @ tf.transpose(a))(x)

    def model():
        inputs = keras.Input((8,))
        twice = keras.layers.Lambda(
            lambda x: tf.reduce_mean(product(x) + product(x), 1, keepdims=True)
        )
        # Of the batch with itself: nothing before it is trained.
        return keras.Model(inputs, keras.layers.Dense(1)(twice(inputs)))

    x = np.zeros((64, 8), "float32")
    found = costs(
        model=model, data=lambda split: (x, x[:, :1]), optimizer="sgd"
    )
    once = 2 * 32 * 8 * 32
    assert 2 * once < found["FLOP"] < 2.5 * once


def test_in_python(tmp_path):
    # Keras' begins to write when it gets the model.
    board = functools.partial(keras.callbacks.TensorBoard, tmp_path / "board")
    x = np.zeros((32, 4), "float32")
    with check(tmp_path, x, callbacks=[Checkpoint, board]) as run:
        assert run.run() == {"parameters": 5.0, "train_steps": 1000.0}
    titles = [section.title for section in run.report]
    assert titles[:3] == ["run", "model", "steps"]
    # Only the command line writes a report.
    assert not list(tmp_path.iterdir())


def test_what_the_guard_finds(tmp_path):
    x = np.full((32, 4), np.nan, "float32")
    message = "diverged after step 0.*loss is nan"
    run = check(tmp_path, x, guard=Guard())
    with run, pytest.raises(Diverged, match=message):
        run.run()
    with check(tmp_path, x, guard=Guard("roll_back", max_rollbacks=9)) as run:
        faults = []
        run.loop.try_steps(1, faults)
        assert "loss is nan" in faults[0]
        assert faults[0].endswith("A run would roll back.")
        with pytest.raises(Diverged, match="more often than Guard.max_roll"):
            run.loop.try_steps(1, faults * 9)


@pytest.mark.parametrize(
    ("name", "callback"),
    [
        ("checkpoints", Checkpoint),
        ("metrics.jsonl", JsonLines),
        ("tensorboard/train", TensorBoard),
        ("run.lock", Checkpoint),
    ],
)
def test_links_that_a_run_refuses(tmp_path, name, callback):
    outside = tmp_path / "outside"
    outside.mkdir()
    link = tmp_path / "run" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    x = np.zeros((32, 4), "float32")
    message = f"^{link} is a symbolic link to {outside}, and"
    with (
        pytest.raises(UserError, match=message),
        check(tmp_path, x, callbacks=[callback]),
    ):
        pass
    assert not list(outside.iterdir())

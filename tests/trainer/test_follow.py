"""The evaluator beside a training process, in one process and in several."""

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading

import keras
import numpy as np
import pytest

from plugins.callbacks.checkpoint import Checkpoint
from plugins.callbacks.early_stopping import EarlyStopping
from plugins.callbacks.json_lines import JsonLines
from plugins.callbacks.tensorboard import TensorBoard
from tests.helpers import read_lines
from trainer import Trainer, UserError, checkpoints
from trainer.follow import follow
from trainer.state import capture

X = np.array([[1.0], [2.0]], "float32")


def make_trainer(**options):
    def model():
        dense = keras.layers.Dense(1, use_bias=False, name="dense")
        return keras.Sequential([keras.Input((1,)), dense], name="net")

    defaults = {
        "model": model,
        "loss": "mean_squared_error",
        "data": lambda split: (X, 0 * X),
        "strategy": "default",
        "batch_size": 2,
    }
    return Trainer(**defaults | options)


def loss_of(weight):
    """The mean square of weight * x."""
    return weight**2 * float(np.mean(X**2))


def write_checkpoint(model_dir, step, weight):
    trainer = make_trainer()
    trainer.model.set_weights([np.array([[weight]], "float32")])
    trainer.step = step
    return checkpoints.save(str(model_dir / "checkpoints"), capture(trainer))


def follow_to(model_dir, train_steps, **options):
    defaults = {"timeout": "0.3s", "poll_seconds": 0.05}
    return follow(
        options.pop("trainer", None) or make_trainer(),
        model_dir=str(model_dir),
        train_steps=train_steps,
        **defaults | options,
    )


def best_of(model_dir):
    """The record, once it agrees with the one checkpoint beside it."""
    record = json.loads((model_dir / "best" / "best.json").read_text())
    (path,) = checkpoints.listing(str(model_dir / "best"))
    assert checkpoints.step_of(path) == record["step"]
    assert checkpoints.find_fault(path) is None
    names = {p.name for p in (model_dir / "best").iterdir()}
    assert names == {"best.json", os.path.basename(path)}
    return record


def test_newest_wins_and_others_are_skipped(tmp_path):
    for step, weight in ((1, 3.0), (2, 1.0), (3, 2.0)):
        write_checkpoint(tmp_path, step, weight)
    found = follow_to(tmp_path, 3, callbacks=[JsonLines()])
    assert found["step"] == 3
    assert found["loss"] == pytest.approx(loss_of(2.0))
    (line,) = read_lines(tmp_path / "metrics_evaluator.jsonl")
    assert (line["step"], line["split"]) == (3, "eval")
    assert line["loss"] == found["loss"]


@pytest.mark.parametrize(
    ("mode", "expected"), [("min", 2), ("max", 1), ("auto", 2)]
)
def test_the_best_is_kept_when_it_gets_worse(tmp_path, mode, expected):
    weights = {1: 3.0, 2: 1.0, 3: 2.0}
    for step, weight in weights.items():
        write_checkpoint(tmp_path, step, weight)
        found = follow_to(tmp_path, step, monitor_mode=mode)
        # The training process keeps few checkpoints.
        shutil.rmtree(tmp_path / "checkpoints")
    assert found["step"] == 3
    assert found["best_step"] == expected
    best = loss_of(weights[expected])
    assert found["best_val_loss"] == pytest.approx(best)
    record = best_of(tmp_path)
    assert record["step"] == expected
    assert record["value"] == pytest.approx(best)
    kept = checkpoints.load_newest(str(tmp_path / "best"))
    assert kept.arrays["model/0000"] == weights[expected]


def test_the_best_starts_a_new_run(tmp_path):
    from trainer.initialize import initialize_from

    write_checkpoint(tmp_path, 5, 4.0)
    follow_to(tmp_path, 5)
    trainer = make_trainer()
    initialize_from(trainer, str(tmp_path / "best"))
    assert trainer.model.get_weights()[0] == 4.0


def test_a_value_that_is_not_finite_is_never_best(tmp_path):
    write_checkpoint(tmp_path, 1, float("nan"))
    found = follow_to(tmp_path, 1)
    assert "best_step" not in found
    assert checkpoints.listing(str(tmp_path / "best")) == []
    write_checkpoint(tmp_path, 2, 1.0)
    assert follow_to(tmp_path, 2)["best_step"] == 2
    write_checkpoint(tmp_path, 3, float("nan"))
    assert follow_to(tmp_path, 3)["best_step"] == 2
    assert best_of(tmp_path)["step"] == 2


def test_a_step_is_evaluated_once_over_restarts(tmp_path):
    write_checkpoint(tmp_path, 1, 1.0)
    for _ in range(2):
        found = follow_to(tmp_path, 9, callbacks=[JsonLines()])
    assert (found["step"], found["best_step"]) == (1, 1)
    assert len(read_lines(tmp_path / "metrics_evaluator.jsonl")) == 1


def test_ends_with_the_run_after_its_last_checkpoint(tmp_path):
    write_checkpoint(tmp_path, 1, 1.0)

    def is_over():
        # The last checkpoint appears between the last look and the end.
        if not os.path.exists(tmp_path / "checkpoints" / "step_00000002"):
            write_checkpoint(tmp_path, 2, 2.0)
        return True

    found = follow_to(tmp_path, 9, timeout="1h", is_over=is_over)
    assert found["step"] == 2


def test_no_checkpoint_in_time_is_the_users_error(tmp_path):
    with pytest.raises(UserError, match=r"no usable checkpoint after 0\.3s"):
        follow_to(tmp_path / "not_there", 9)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"timeout": "10 steps"}, "run.eval_timeout"),
        ({"poll_seconds": 0.0}, "run.eval_poll_seconds"),
        ({"monitor": "val_accuracy"}, "'val_accuracy' is not measured"),
        ({"monitor": "loss"}, "Did you mean 'val_loss'"),
    ],
)
def test_what_the_user_gave_is_checked(tmp_path, options, words):
    write_checkpoint(tmp_path, 1, 1.0)
    with pytest.raises(UserError, match=words):
        follow_to(tmp_path, 1, **options)


def test_another_model_is_refused(tmp_path):
    write_checkpoint(tmp_path, 1, 1.0)
    other = make_trainer(
        model=lambda: keras.Sequential(
            [keras.Input((1,)), keras.layers.Dense(1)]
        )
    )
    with pytest.raises(UserError, match="another model"):
        follow_to(tmp_path, 1, trainer=other)


def test_the_optimizer_may_be_another_one(tmp_path):
    write_checkpoint(tmp_path, 1, 1.0)  # With Adam.
    plain = make_trainer(optimizer="sgd")
    found = follow_to(tmp_path, 1, trainer=plain)
    assert found["loss"] == pytest.approx(loss_of(1.0))


@pytest.mark.parametrize("fault", ["no manifest", "short arrays", "empty"])
def test_a_torn_checkpoint_is_passed_over_in_silence(tmp_path, fault, caplog):
    write_checkpoint(tmp_path, 1, 1.0)
    torn = tmp_path / "checkpoints" / "step_00000002"
    write_checkpoint(tmp_path, 2, 2.0)
    if fault == "no manifest":
        (torn / "manifest.json").unlink()
    elif fault == "short arrays":
        (data,) = torn.glob("arrays.data-*")
        data.write_bytes(data.read_bytes()[:-1])
    else:
        shutil.rmtree(torn)
        torn.mkdir()
    with caplog.at_level(logging.WARNING):
        assert follow_to(tmp_path, 9)["step"] == 1
    assert not caplog.records


def test_checkpoints_vanish_while_they_are_read(tmp_path):
    directory = str(tmp_path / "checkpoints")
    values = np.arange(20000.0)
    done = threading.Event()

    def train():
        step, before = 0, None
        while not done.is_set():
            step += 1
            arrays = {"a": values + step, "b": values - step}
            snapshot = checkpoints.Snapshot(step, arrays, {})
            path = checkpoints.save(directory, snapshot)
            if before is not None:
                checkpoints.remove(before)
            before = path

    thread = threading.Thread(target=train)
    thread.start()
    seen = []
    try:
        while len(seen) < 15 and thread.is_alive():
            newest = seen[-1] if seen else 0
            snapshot = checkpoints.load_newer(directory, newest)
            if snapshot is not None:
                np.testing.assert_array_equal(
                    snapshot.arrays["a"] - snapshot.step, values
                )
                np.testing.assert_array_equal(
                    snapshot.arrays["b"] + snapshot.step, values
                )
                seen.append(snapshot.step)
    finally:
        done.set()
        thread.join()
    assert len(seen) == 15
    assert seen == sorted(set(seen))


def test_only_what_watches_takes_part(tmp_path):
    write_checkpoint(tmp_path, 1, 1.0)
    before = sorted(p.name for p in tmp_path.rglob("*"))
    callbacks = [
        JsonLines(),
        TensorBoard(),
        Checkpoint(),
        EarlyStopping(patience=1),
        keras.callbacks.CSVLogger(str(tmp_path / "log.csv")),
    ]
    follow_to(tmp_path, 1, callbacks=callbacks)
    assert {p.name for p in tmp_path.iterdir()} == {
        "checkpoints",
        "best",
        "metrics_evaluator.jsonl",
        "tensorboard",
    }
    assert [p.name for p in (tmp_path / "tensorboard").iterdir()] == [
        "evaluator"
    ]
    inside = sorted(p.name for p in (tmp_path / "checkpoints").rglob("*"))
    assert inside == [name for name in before if name != "checkpoints"]


# Several processes.

_EXPERIMENT = """
import os
import signal
import time

import gin
import keras
import numpy as np

from trainer import Callback


@gin.configurable
def net():
    return keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(3, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(1),
        ]
    )


@gin.configurable
def sums(split):
    x = np.random.default_rng(len(split)).random((24, 4), "float32")
    return x, x.sum(axis=1, keepdims=True)


@gin.configurable
class Together(Callback):
    # Waits for the evaluation of each checkpoint, and stops early.
    def on_train_batch_begin(self, batch, logs=None):
        step = self.trainer.step
        if step not in (2, 4):
            return
        path = os.path.join(self.trainer.model_dir, "metrics_evaluator.jsonl")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if os.path.exists(path):
                with open(path) as file:
                    if f'"step": {step},' in file.read():
                        return
            time.sleep(0.02)
        raise TimeoutError(f"the evaluator has not seen step {step}")

    def on_save(self, step, logs):
        if step == 6:
            self.trainer.stop("enough")


@gin.configurable
class KillAt(Callback):
    only_watches = True

    def on_log(self, step, split, logs):
        if os.environ.get("KILL_AT") == str(step):
            os.kill(os.getpid(), signal.SIGKILL)
"""
_CONFIG = """
import side_by_side

Trainer.model = @net
Trainer.loss = 'mean_squared_error'
Trainer.optimizer = @SGD
Trainer.learning_rate = 0.1
Trainer.data = @sums
Trainer.batch_size = 8
Trainer.ema_momentum = 0.5
run.train_steps = 1000
run.steps_per_loop = 2
run.eval_every = 2
run.eval_poll_seconds = 0.05
run.eval_timeout = '100s'
Checkpoint.every = 2
Checkpoint.keep_last = 1
run.callbacks = [@JsonLines(), @TensorBoard(), @Checkpoint(), @KillAt()]
"""


def start(folder, *arguments, **environ):
    command = [sys.executable, "-m", "trainer", "--gin_file=side.gin"]
    return subprocess.Popen(
        [*command, *arguments],
        cwd=folder,
        env=os.environ | environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process, code=0):
    try:
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == code, err[-4000:]
    if not code:
        assert not err
    return out


def printed(out):
    pairs = (line.split(": ") for line in out.splitlines() if ": " in line)
    return dict(pairs)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A finished training run, with what its evaluator printed."""
    folder = tmp_path_factory.mktemp("side_by_side")
    (folder / "side_by_side.py").write_text(_EXPERIMENT)
    (folder / "side.gin").write_text(_CONFIG)
    evaluator = start(folder, "--model_dir=run", "--mode=continuous_eval")
    training = start(
        folder,
        "--model_dir=run",
        "--strategy=mirrored",
        "--virtual_devices=2",
        "--gin.run.callbacks=[@JsonLines(), @Checkpoint(), @Together()]",
    )
    finish(training)
    (folder / "printed").write_text(finish(evaluator))
    return folder


def evaluations(path):
    return [line for line in read_lines(path) if line["split"] == "eval"]


def test_it_measures_what_the_training_process_measures(folder):
    run = folder / "run"
    ours = evaluations(run / "metrics_evaluator.jsonl")
    theirs = evaluations(run / "metrics.jsonl")
    assert [line["step"] for line in ours] == [2, 4, 6]
    for mine, expected in zip(ours, theirs, strict=True):
        assert set(mine) == set(expected)
        assert mine["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    losses = {line["loss"]: line["step"] for line in ours}
    assert best_of(run)["step"] == losses[min(losses)]


def test_it_measures_what_eval_mode_measures(folder):
    out = finish(start(folder, "--model_dir=run", "--mode=eval"))
    mine = printed((folder / "printed").read_text())
    assert mine["step"] == "6"
    assert mine["loss"] == printed(out)["loss"]


def test_it_leaves_the_record_of_the_run_alone(folder):
    record = json.loads((folder / "run" / "run.json").read_text())
    assert record["exit_reason"] == "done"
    assert record["strategy"] == "mirrored"
    assert record["restarts"] == 0
    config = (folder / "run" / "config.gin").read_text()
    assert "TensorBoard" not in config


def test_a_killed_evaluator_goes_on_without_repeating(folder):
    run = folder / "killed"
    shutil.copytree(folder / "run" / "checkpoints", run / "checkpoints")
    arguments = ("--model_dir=killed", "--mode=continuous_eval")
    # After the line was written, before the record was.
    process = start(folder, *arguments, "--train_steps=6", KILL_AT="6")
    finish(process, -signal.SIGKILL)
    lines = (run / "metrics_evaluator.jsonl").read_text()
    assert not (run / "best" / "best.json").exists()
    with (run / "metrics_evaluator.jsonl").open("a") as file:
        file.write('{"step": 8, "spl')
    finish(start(folder, *arguments, "--train_steps=6"))
    assert (run / "metrics_evaluator.jsonl").read_text() == lines
    assert [line["step"] for line in map(json.loads, lines.splitlines())] == [6]
    assert best_of(run)["step"] == 6


def test_the_evaluator_of_a_cluster_follows_by_itself(folder):
    jobs = {
        "multi_worker_mirrored": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]},
        "parameter_server": {
            "chief": ["127.0.0.1:1"],
            "worker": ["127.0.0.1:2"],
            "ps": ["127.0.0.1:3"],
        },
    }
    processes = {}
    for name, cluster in jobs.items():
        shutil.copytree(
            folder / "run" / "checkpoints", folder / name / "checkpoints"
        )
        task = {"type": "evaluator", "index": 0}
        processes[name] = start(
            folder,
            f"--model_dir={name}",
            "--mode=train_and_eval",
            "--train_steps=6",
            TF_CONFIG=json.dumps({"cluster": cluster, "task": task}),
        )
    expected = evaluations(folder / "run" / "metrics_evaluator.jsonl")[-1]
    for name, process in processes.items():
        finish(process)
        (line,) = read_lines(folder / name / "metrics_evaluator.jsonl")
        assert line == expected
        assert {p.name for p in (folder / name).iterdir()} == {
            "checkpoints",
            "best",
            "metrics_evaluator.jsonl",
            "tensorboard",
        }


def test_the_command_line_says_that_there_is_no_checkpoint(folder):
    process = start(
        folder,
        "--model_dir=nothing",
        "--mode=continuous_eval",
        "--gin.run.eval_timeout='0.1s'",
    )
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert err.startswith("error: nothing/checkpoints has no usable")
    assert len(err.splitlines()) <= 3

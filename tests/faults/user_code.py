"""The experiment of these tests: a tiny model, and a callback with faults.

This is user code: it is imported by `faults.gin`, and uses what any user may.
`FAULTS_DIR` names a folder of the test. Its file `plan` says what happens to
the process, a line each:

    TASK POINT STEP ACTION

TASK is `worker_1`, `ps_0` and so on, or `single`; POINT is where, from step
STEP on, and ACTION what: the name of a signal that the process sends itself,
`hold` (it waits for the test's `release`), `ignore` (SIGINT and SIGTERM),
`raise`, or an exit code. Each happens once for each time the plan is written.
The file `phase_TASK` says what the process is doing.

The points, in their order:

    import       the gin file is being read
    model        the model is made
    connect      TensorFlow is about to connect the tasks, which have met
    setup        everything is built, nothing is restored yet
    begin        all is restored
    step         a host loop is about to start
    forward      the model is called in a training step; `hanging_net` only
    evaluation   an evaluation is about to start
    predict      the model is called in an evaluation; `hanging_net` only
    log          values are logged
    save         a step is done, and is now saved if a save is due
    writing      a checkpoint is being written, in another thread
    close        the run has ended, well or not
"""

import io
import json
import os
import pathlib
import signal
import sys
import threading
import time

import gin
import keras
import numpy as np
import tensorflow as tf

from trainer import Callback

_HOLD_SECONDS = 120.0


def _task():
    config = json.loads(os.environ.get("TF_CONFIG") or "{}")
    task = config.get("task", {"type": "single"})
    return "_".join(str(part) for part in task.values())


_TASK = os.environ.get("FAULTS_TASK") or _task()
_FOLDER = pathlib.Path(os.environ.get("FAULTS_DIR", "/nonexistent"))
# A random signal shall have a chance to hit any phase.
_PHASE_SECONDS = float(os.environ.get("FAULTS_PHASE_SECONDS", "0"))


def _plan():
    """What is left to happen to this task, as (number, point, step, action)."""
    try:
        lines = (_FOLDER / "plan").read_text().splitlines()
    except FileNotFoundError:
        return []
    found = []
    for number, line in enumerate(lines):
        task, point, step, action = line.split()
        if task == _TASK and not (_FOLDER / f"done_{number}").exists():
            found.append((number, point, int(step), action))
    return found


def _enter(point, step=0, model_dir=None):
    """Says what the process is doing, and lets happen what is due."""
    if not _FOLDER.is_dir():
        return
    phase = _FOLDER / f"phase_{_TASK}"
    # A name of its own: two threads may be here at once.
    new = phase.with_name(f"{phase.name}_{threading.get_ident()}")
    new.write_text(f"{point} {step}")
    new.rename(phase)
    for number, where, first, action in _plan():
        if point == where and step >= first:
            (_FOLDER / f"done_{number}").touch()
            _act(action, number)
    if _PHASE_SECONDS:
        time.sleep(_PHASE_SECONDS)


def _act(action, number):
    if action.startswith("SIG"):
        os.kill(os.getpid(), signal.Signals[action])
    elif action == "hold":
        (_FOLDER / f"held_{number}").touch()
        deadline = time.monotonic() + _HOLD_SECONDS
        while not (_FOLDER / f"release_{number}").exists():
            if time.monotonic() > deadline:
                raise TimeoutError("nobody released this process")
            time.sleep(0.01)
    elif action == "ignore":
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
    elif action == "raise":
        raise RuntimeError("broken on purpose")
    else:
        sys.exit(int(action))


@gin.configurable
def files_of_host(split):
    """What the files of a host hold, in the order in which it lists them."""
    folder = pathlib.Path(os.environ["FAULTS_DATA"]) / split
    parts = [np.load(folder / name) for name in os.listdir(folder)]
    x = np.concatenate(parts)
    return x, (x[:, 0] > 0).astype("int32") + (x[:, 1] > 0)


@gin.configurable
def tiny_net(units=8):
    """Dropout, batch statistics, augmentation: all kinds of state."""
    _enter("model")
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.GaussianNoise(0.1),
            layers.Dense(units, activation="relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.3),
            layers.Dense(3),
        ]
    )


@gin.configurable
def plain_net():
    """Its training does not depend on how many replicas share a batch."""
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])


@gin.configurable
def image_net():
    """Of images of four pixels, in bytes."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((2, 2, 3), dtype="uint8"),
            layers.Rescaling(1 / 255),
            layers.Flatten(),
            layers.Dense(3, activation="softmax"),
        ]
    )


@gin.configurable
def hanging_net():
    """Runs Python in each of its calls."""

    class Hanging(keras.Sequential):
        def call(self, x, training=False):
            point = "forward" if training else "predict"

            def enter(value):
                _enter(point)
                return value

            shape = x.shape
            x = tf.py_function(enter, [x], x.dtype)
            return super().call(tf.ensure_shape(x, shape), training=training)

    return Hanging([keras.Input((6,)), keras.layers.Dense(3)])


@gin.configurable
def tiny_data(split):
    """Three classes that can be told apart; 96 examples."""
    rng = np.random.default_rng(len(split))
    labels = np.arange(96) % 3
    x = rng.normal(size=(96, 6)).astype("float32")
    x[np.arange(96), labels] += 2.0
    return x, labels


@gin.configurable
def stored_data(split, data_dir):
    """Arrays in a file, which may be remote."""
    with tf.io.gfile.GFile(f"{data_dir}/{split}.npz", "rb") as file:
        arrays = np.load(io.BytesIO(file.read()))
    return arrays["x"], arrays["y"]


@gin.configurable
class Faults(Callback):
    """Comes first in `run.callbacks`; acts in an evaluator too."""

    only_watches = True

    def setup(self):
        _enter("setup")
        if any(point == "writing" for _, point, _, _ in _plan()):
            folder = os.path.join(self.run.model_dir, "checkpoints")
            threading.Thread(
                target=self._watch, args=(folder,), daemon=True
            ).start()

    def on_train_begin(self, logs=None):
        _enter("begin", self.run.step)

    def on_train_batch_begin(self, batch, logs=None):
        _enter("step", self.run.step)

    def on_test_begin(self, logs=None):
        _enter("evaluation", self.run.step)

    def on_log(self, step, split, logs):
        _enter("log", step)

    def on_save(self, step, logs):
        _enter("save", step)

    def close(self):
        _enter("close", self.run.step)

    def _watch(self, folder):
        """Sees a checkpoint that does not have its final name yet."""
        while True:
            try:
                names = os.listdir(folder)
            except FileNotFoundError:
                names = []
            if not all(name.startswith("step_") for name in names):
                _enter("writing", self.run.step)
            time.sleep(0.0002)


def _at_connecting(kind):
    """Makes a class of TensorFlow enter the point before it is made."""
    start = kind.__init__

    def connect(self, *arguments, **options):
        if any(point == "connect" for _, point, _, _ in _plan()):
            # The others are beyond their meeting by then, and wait for this
            # task in TensorFlow.
            time.sleep(1.0)
        _enter("connect")
        start(self, *arguments, **options)

    kind.__init__ = connect


_at_connecting(tf.distribute.MultiWorkerMirroredStrategy)
_at_connecting(tf.distribute.Server)
_enter("import")

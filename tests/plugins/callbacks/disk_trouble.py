"""A small experiment whose model_dir gets into trouble at given steps."""

import os
import shutil
import signal
import subprocess
import time

import gin
import keras
import numpy as np

from trainer import Callback
from trainer.checkpoint import storage


@gin.configurable
def small_model():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])


@gin.configurable
def small_data(split):
    x = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
    return x, x[:, :1]


@gin.configurable
class Trouble(Callback):
    """Does something to the file system after a step.

    Args:
        at: step to the name of a function of this module.
    """

    def __init__(self, at):
        super().__init__()
        self._at = at

    def on_train_batch_end(self, batch, logs=None):
        kind = self._at.get(self.run.step)
        if kind:
            directory = f"{self.run.model_dir}/checkpoints"
            steps = map(storage.step_of, storage.listing(directory))
            print(f"before {kind}: {sorted(steps)}", flush=True)
            if kind in QUIET:
                wait_for_save(directory, self.run.step // 5 * 5)
            globals()[kind](self.run.model_dir)


def fill(model_dir):
    """Leaves not a byte; a disk is a tmpfs that holds model_dir."""
    with open(os.path.join(model_dir, os.pardir, "ballast"), "wb") as file:
        while True:
            try:
                os.write(file.fileno(), bytes(4096))
            except OSError:
                return


def free(model_dir):
    os.remove(os.path.join(model_dir, os.pardir, "ballast"))


def read_only(model_dir):
    """A read-only view of the disk covers it.

    The run holds its lock open, so the disk itself cannot be remounted.
    """
    disk = os.path.dirname(model_dir)
    subprocess.run(["mount", "--bind", disk, disk], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", disk], check=True)


def hide_metrics(model_dir):
    """A directory stands where the file was."""
    path = os.path.join(model_dir, "metrics.jsonl")
    os.rename(path, f"{path}.away")
    os.mkdir(path)


def show_metrics_and_die(model_dir):
    path = os.path.join(model_dir, "metrics.jsonl")
    os.rmdir(path)
    os.rename(f"{path}.away", path)
    os.kill(os.getpid(), signal.SIGKILL)


def delete(model_dir):
    shutil.rmtree(model_dir)


def move_away(model_dir):
    os.rename(model_dir, f"{model_dir}-moved")


def block(model_dir):
    move_away(model_dir)
    with open(model_dir, "w") as file:
        file.write("a file is in the way")


# What is only done while no save is under way.
QUIET = (
    "fill",
    "read_only",
    "show_metrics_and_die",
    "delete",
    "move_away",
    "block",
)


def wait_for_save(directory, step):
    """Waits until a step is saved and older checkpoints are deleted."""
    name, deadline = f"step_{step:08d}", time.monotonic() + 60
    while time.monotonic() < deadline:
        names = os.listdir(directory)
        if name in names and all(n.startswith("step_") for n in names):
            time.sleep(0.5)  # Until its last file is closed.
            return
        time.sleep(0.05)

"""User code that starts children, or gets a signal where TensorFlow has it.

Imported by a gin file beside `tests.faults.faults.gin`. `SIGNAL_CODE` names
what happens, and `SIGNAL_FILE` the file that a line is added to for each child.

    children    children are started while the gin file is read, in a thread
                from then on, where the data is made, and in training; each is
                asked to end
    connected   TensorFlow has just taken SIGTERM for itself, and it comes
"""

import multiprocessing
import os
import signal
import subprocess
import threading
import time

import gin
import numpy as np
import tensorflow as tf

from trainer import Callback

_WHAT = os.environ.get("SIGNAL_CODE", "")
_SECONDS = 60


def start_children(where):
    """Starts some, asks them to end, and notes their return codes."""
    command = ["sleep", str(_SECONDS)]
    started = {
        "popen": subprocess.Popen(command),
        # Not by a fork in C, but by one in Python.
        "preexec": subprocess.Popen(command, preexec_fn=os.getpid),
    }
    for kind in ("fork", "spawn"):
        made = multiprocessing.get_context(kind).Process(
            target=time.sleep, args=(_SECONDS,), daemon=True
        )
        made.start()
        started[kind] = made
    codes = {}
    for kind, child in started.items():
        child.terminate()
        if isinstance(child, subprocess.Popen):
            codes[kind] = child.wait(_SECONDS / 2)
        else:
            child.join(_SECONDS / 2)
            codes[kind] = child.exitcode
    shell = "kill -TERM $$; exit 3"
    codes["system"] = -(os.system(shell) & 0x7F)
    with open(os.environ["SIGNAL_FILE"], "a") as file:
        file.write(f"{where} {sorted(codes.items())}\n")


class Early(threading.Thread):
    """Started before TensorFlow connects, and at work later."""

    def __init__(self):
        super().__init__(daemon=True)
        self.due, self.done = threading.Event(), threading.Event()

    def run(self):
        self.due.wait()
        start_children("thread")
        self.done.set()


@gin.configurable
def data_with_children(split):
    """Examples from a Python generator, which TensorFlow's threads run."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(48, 6)).astype("float32")

    def examples():
        if _WHAT == "children" and split == "train":
            start_children("data")
        yield from zip(x, np.arange(48) % 3, strict=True)

    kinds = (tf.TensorSpec((6,), tf.float32), tf.TensorSpec((), tf.int64))
    made = tf.data.Dataset.from_generator(examples, output_signature=kinds)
    return made.batch(12)


@gin.configurable
class Children(Callback):
    def on_train_begin(self, logs=None):
        if _WHAT == "children":
            start_children("training")
            EARLY.due.set()
            assert EARLY.done.wait(_SECONDS)


def _at_connected(kind):
    start = kind.__init__

    def connect(self, *arguments, **options):
        start(self, *arguments, **options)
        if _WHAT == "connected":
            os.kill(os.getpid(), signal.SIGTERM)

    kind.__init__ = connect


_at_connected(tf.distribute.MultiWorkerMirroredStrategy)
EARLY = Early()
if multiprocessing.parent_process() is None and _WHAT == "children":
    start_children("import")
    EARLY.start()

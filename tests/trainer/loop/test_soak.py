"""A long run: its memory does not grow with its steps."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.long
STEPS = 20_000
# A kilobyte at each step would be 15 MB. Now and then the allocator takes
# another arena, of 9 MB.
MOST = 14e6

CONFIG = """
import soak
Trainer.model = @line
Trainer.loss = 'mse'
Trainer.data = @pairs
Trainer.batch_size = 16
Trainer.optimizer = @Adam
run.train_steps = {steps}
run.eval_every = 1000
run.callbacks = [
    @Progress(), @TensorBoard(), @JsonLines(), @Export(), @Preemption(),
    @Watchdog(), @Sizes(), @Checkpoint(),
]
Checkpoint.every = 1000
Checkpoint.keep_last = 2
"""
CODE = """
import gc
import json
import os
import gin
import keras
import numpy as np
from trainer import Callback

@gin.configurable
def pairs(split):
    x = np.random.default_rng(0).normal(size=(160, 8)).astype("float32")
    return x, x[:, :1]

@gin.configurable
def line():
    dense = [keras.layers.Dense(16, "relu"), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((8,)), *dense])

@gin.configurable
class Sizes(Callback):
    '''Notes how large the process is, when garbage is collected.'''

    def next_due(self, step):
        return (step // 2500 + 1) * 2500

    def on_train_batch_end(self, batch, logs=None):
        if self.run.step % 2500 == 0:
            gc.collect()
            with open("/proc/self/statm") as file:
                pages = int(file.read().split()[1])
            size = pages * os.sysconf("SC_PAGE_SIZE")
            with open("sizes.jsonl", "a") as file:
                file.write(json.dumps([self.run.step, size]) + "\\n")
"""


@pytest.mark.parametrize("form", ["graph", "xla_stack"])
def test_memory_does_not_grow(form, tmp_path):
    (tmp_path / "soak.py").write_text(CODE)
    (tmp_path / "soak.gin").write_text(CONFIG.format(steps=STEPS))
    subprocess.run(
        [
            *(sys.executable, "-m", "trainer", "--gin_file=soak.gin"),
            *("--model_dir=run", f"--jit_compile={form}"),
        ],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        check=True,
        stdout=subprocess.PIPE,
        timeout=500,
    )
    lines = (tmp_path / "sizes.jsonl").read_text().splitlines()
    sizes = dict(map(json.loads, lines))
    assert list(sizes) == list(range(2500, STEPS + 1, 2500))
    # By the first of these all has been traced, and buffers have their size.
    assert sizes[STEPS] - sizes[5000] < MOST, sizes

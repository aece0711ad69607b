"""The gin file of an experiment of a few lines, and how to run it."""

import os
import subprocess
import sys

HERE = os.path.dirname(__file__)

IMPORT = "import cli_tiny_experiment\n"
TINY = f"""{IMPORT}\
Trainer.model = @linear
Trainer.loss = @losses.MeanSquaredError()
Trainer.optimizer = @SGD
Trainer.data = @sums
Trainer.batch_size = 16
run.strategy = 'one_device'
run.train_steps = 8
run.steps_per_loop = 4
"""


def run_trainer(folder, *arguments, text=TINY, **environment):
    """Runs `python -m trainer` in a folder that holds tiny.gin."""
    (folder / "tiny.gin").write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "trainer", "--gin_file=tiny.gin", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": HERE, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )

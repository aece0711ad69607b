"""Trains a linear model for very long; started by tests.

    python -m tests.plugins.callbacks.endless_script MODEL_DIR OPTIONS

Prints `step N` after each host loop, and exits as `python -m trainer` does.
OPTIONS is JSON: `preemption` and `checkpoint` are arguments of these callbacks;
a step takes `pause`, and a save `save_seconds` longer than it would.
"""

import json
import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def main(model_dir, options):
    import keras
    import numpy as np

    from trainer import Callback, StartAgain, Trainer
    from trainer.plugin_api import storage
    from trainer_plugins import Checkpoint, Preemption

    options = json.loads(options)

    class Report(Callback):
        def on_train_batch_end(self, batch, logs=None):
            print(f"step {self.run.step}", flush=True)
            end = time.monotonic() + options.get("pause", 0.0)
            # In slices: Python runs handlers of signals between them.
            while time.monotonic() < end:
                time.sleep(0.01)

    save = storage.save

    def slow_save(directory, snapshot):
        time.sleep(options.get("save_seconds", 0.0))
        return save(directory, snapshot)

    storage.save = slow_save
    x = np.random.default_rng(0).normal(size=(640, 4)).astype("float32")
    made = Trainer(
        model=lambda: keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(1)]
        ),
        loss="mse",
        optimizer=lambda: keras.optimizers.SGD(0.05),
        data=lambda split: (x, x[:, :1]),
        batch_size=64,
        strategy="default",
    )
    callbacks = [
        Report(),
        Preemption(**options.get("preemption", {})),
        Checkpoint(**{"every": 1000, **options.get("checkpoint", {})}),
    ]
    try:
        made.train_and_evaluate(
            100_000_000,
            model_dir=model_dir,
            callbacks=callbacks,
            steps_per_loop=10,
            log_every=1000,
            eval_every=1000,
        )
    except StartAgain as error:
        print(f"start again: {error}", flush=True)
        return 75
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

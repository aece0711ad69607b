"""Trains a linear model for very long; started by tests.

    python -m tests.plugins.callbacks.endless_script MODEL_DIR OPTIONS

Prints `step N` after each host loop, and exits as `python -m trainer` does.
OPTIONS is JSON: `preemption`, `watchdog` and `checkpoint` are arguments of
these callbacks, `loop` of the loop; `hang` names a place that hangs after
step 100: "step", "evaluation" or "checkpoint"; a save takes `save_seconds`
longer than it would.
"""

import json
import os
import signal
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def main(model_dir, options):
    import keras
    import numpy as np
    import tensorflow as tf

    from trainer import Callback, StartAgain, Trainer
    from trainer.checkpoint import storage
    from trainer.runtime.process_exit import last_words
    from trainer_plugins.callbacks.checkpoint import Checkpoint
    from trainer_plugins.callbacks.preemption import Preemption
    from trainer_plugins.callbacks.watchdog import Watchdog

    options = json.loads(options)
    hang = options.get("hang")

    class Report(Callback):
        def on_train_batch_end(self, batch, logs=None):
            print(f"step {self.run.step}", flush=True)
            end = time.monotonic() + options.get("pause", 0.0)
            # In slices: Python runs handlers of signals between them.
            while time.monotonic() < end:
                time.sleep(0.01)

    class Model(keras.Sequential):
        def call(self, x, training=False):
            place = "step" if training else "evaluation"
            if hang == place:
                x = tf.py_function(lambda a: sleep_on(a), [x], x.dtype)
                x = tf.ensure_shape(x, [None, 4])
            return super().call(x, training=training)

    def sleep_on(x):
        if made.step >= 100:
            time.sleep(1000)
        return x

    save = storage.save

    def hanging_save(directory, snapshot):
        if hang == "checkpoint" and snapshot.step > 100:
            time.sleep(1000)
        time.sleep(options.get("save_seconds", 0.0))
        return save(directory, snapshot)

    storage.save = hanging_save
    x = np.random.default_rng(0).normal(size=(640, 4)).astype("float32")
    made = Trainer(
        model=lambda: Model([keras.Input((4,)), keras.layers.Dense(1)]),
        loss="mse",
        optimizer=lambda: keras.optimizers.SGD(0.05),
        data=lambda split: (x, x[:, :1]),
        batch_size=64,
        strategy="default",
    )
    callbacks = [
        Report(),
        Preemption(**{"metadata_url": "", **options.get("preemption", {})}),
        Watchdog(**options.get("watchdog", {})),
        Checkpoint(**{"every": 1000, **options.get("checkpoint", {})}),
    ]
    with last_words(lambda reason: print(f"last words {reason}", flush=True)):
        try:
            made.train_and_evaluate(
                100_000_000,
                model_dir=model_dir,
                callbacks=callbacks,
                **{
                    "steps_per_loop": 10,
                    "log_every": 1000,
                    "eval_every": 1000,
                    **options.get("loop", {}),
                },
            )
        except StartAgain as error:
            print(f"start again: {error}", flush=True)
            return 75
        except KeyboardInterrupt:
            # The second Ctrl-C may echo, after the callbacks are closed too.
            signal.raise_signal(signal.SIGINT)
            print("left in order", flush=True)
            return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

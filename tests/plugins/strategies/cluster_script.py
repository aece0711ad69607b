"""Trains a linear model in a task of a cluster; started by tests.

    TF_CONFIG=... python -m tests.plugins.strategies.cluster_script \
        STRATEGY STEPS PAUSE [OPTION=VALUE ...]

Prints `step N threads T` after each host loop of 10 steps.
"""

import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def main(name, steps, pause, *options):
    import keras
    import numpy as np

    from trainer import Callback, StartAgain, Trainer
    from trainer.registry import find_strategy

    class Report(Callback):
        def on_save(self, step, logs):
            threads = len(os.listdir("/proc/self/task"))
            print(f"step {step} threads {threads}", flush=True)
            time.sleep(float(pause))

    given = dict(option.split("=") for option in options)
    plugin = find_strategy(name, **{k: _number(v) for k, v in given.items()})
    x = np.random.default_rng(0).normal(size=(640, 4)).astype("float32")
    try:
        if plugin.serve():
            return 0
        trainer = Trainer(
            model=lambda: keras.Sequential(
                [keras.Input((4,)), keras.layers.Dense(1)]
            ),
            loss="mse",
            optimizer=lambda: keras.optimizers.SGD(0.05),
            data=lambda split: (x, x[:, :1]),
            batch_size=64,
            strategy=plugin,
        )
        logs = trainer.train_and_evaluate(
            int(steps),
            steps_per_loop=10,
            log_every=10,
            eval_every=int(steps),
            callbacks=[Report()],
        )
        print(f"iterations {int(trainer.optimizer.iterations.numpy())}")
        print(f"staleness {logs.get('staleness', 0.0):.6f}")
        print(f"loss {logs['val_loss']:.6f}", flush=True)
        plugin.finish()
    except StartAgain as error:
        print(f"start again: {error}", flush=True)
        os._exit(75)
    return 0


def _number(text):
    return int(text) if text.isdigit() else text


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""Trains a linear model in a task of a cluster; started by tests.

    TF_CONFIG=... python -m tests.plugins.strategies.cluster_script \
        STRATEGY STEPS PAUSE [OPTION=VALUE ...]

Prints `step N done` after each host loop of 10 steps. An option is one
of the strategy plugin's, or one of these:

    tell=yes         print `worked on X` for each step, where it is done; X
                     are the numbers of its examples
    data=KIND        in place of arrays
    slow=yes         a step ends long after it has changed the weights
"""

import os
import sys
import time
import traceback

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def main(name, steps, pause, *options):
    from trainer import StartAgain, UserError
    from trainer_plugins import MultiWorkerMirrored, ParameterServer

    given = dict(option.split("=") for option in options)
    own = ("tell", "slow", "data")
    own = {name: given.pop(name, None) for name in own}
    kind = {one.name: one for one in (MultiWorkerMirrored, ParameterServer)}
    plugin = kind[name](**{k: _number(v) for k, v in given.items()})
    code = 0
    try:
        try:
            if not plugin.serve():
                train(plugin, int(steps), pause=float(pause), **own)
                plugin.finish()
        finally:
            plugin.close()
    except StartAgain as error:
        code = 75
        say(f"start again: {error}")
    except UserError as error:
        code = 2
        say(f"error: {error}")
    except Exception:
        code = 1
        traceback.print_exc()
    sys.stdout.flush()
    # As the command line does: TensorFlow would wait for lost peers.
    os._exit(code)


def train(plugin, steps, *, pause, tell, slow, data):
    import keras
    import numpy as np
    import tensorflow as tf

    from trainer import Callback, Trainer

    class Report(Callback):
        def on_save(self, step, logs):
            say(f"step {step} done")
            time.sleep(pause)

    class Telling(Trainer):
        def forward(self, x, *, training):
            if training and tell:
                tf.print("worked on", x[:, 0], summarize=-1)
            return super().forward(x, training=training)

        def train_step(self, batch):
            logs = super().train_step(batch)
            if not slow:
                return logs
            busy = tf.random.normal((1000, 1000))
            for _ in range(16):
                busy = tf.matmul(busy, busy) / 1000
            # By data: TensorFlow leaves out what is only waited for.
            one = tf.where(tf.math.is_nan(busy[0, 0]), 0.0, 1.0)
            return tf.nest.map_structure(lambda value: value * one, logs)

    x = np.random.default_rng(0).normal(size=(640, 4)).astype("float32")
    if tell:
        x[:, 0] = np.arange(640)
    pairs = (x, x[:, :1])

    def function(split):
        return tf.data.Dataset.from_tensor_slices(pairs).batch(64)

    def python():
        yield from zip(*pairs, strict=True)

    # Before the first object of TensorFlow's.
    plugin.strategy  # noqa: B018
    given = {
        "arrays": lambda split: pairs,
        "dataset": function,
        "shuffled": lambda split: (
            function(split).unbatch().shuffle(640).batch(64)
        ),
        "python": lambda split: tf.data.Dataset.from_generator(
            python,
            output_signature=(tf.TensorSpec([4]), tf.TensorSpec([1])),
        ).batch(64),
        "object": dict.fromkeys(("train", "eval"), function("train")),
    }
    trainer = Telling(
        model=lambda: keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(1)]
        ),
        loss="mse",
        optimizer=lambda: keras.optimizers.SGD(0.0 if tell else 0.05),
        data=given[data or "arrays"],
        batch_size=64,
        strategy=plugin,
    )
    logs = trainer.train_and_evaluate(
        steps,
        steps_per_loop=10,
        log_every=10,
        eval_every=steps,
        callbacks=[Report()],
    )
    say(f"iterations {int(trainer.optimizer.iterations.numpy())}")
    say(f"staleness {logs.get('staleness', 0.0):.6f}")
    say(f"loss {logs['val_loss']:.6f}")


def say(text):
    # In one write: TensorFlow's threads use the same file.
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _number(text):
    return int(text) if text.isdigit() else text


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A run that goes back is one whose data lacks the batches at fault."""

import json
import os

import keras
import numpy as np
import tensorflow as tf

from trainer import ArrayExamples, Guard, IndexedBatches, Trainer
from trainer_plugins import Checkpoint, JsonLines

from . import models

STEPS = 12
BATCHES = 2 * STEPS
# Examples that are no numbers, and options of the Trainer.
VARIANTS = {
    "plain": ([7 * models.BATCH + 3], {}),
    "two": ([6 * models.BATCH, 10 * models.BATCH + 5], {}),
    "in_the_first_loop": ([models.BATCH + 1], {}),
    "averages": ([5 * models.BATCH], {"ema_momentum": 0.9}),
    "accumulated": ([7 * models.BATCH], {"accumulation_steps": models.MICRO}),
    "shuffled": (range(0, BATCHES * models.BATCH, 8 * models.BATCH), {}),
}


def divergence(strategy, directory, only=tuple(VARIANTS)):
    """Weights and averages with a guard, and of the reference."""
    results = {}
    for variant in only:
        numbers, options = VARIANTS[variant]
        shuffle = variant == "shuffled"
        arrays = poisoned(numbers)
        guarded = _trainer(
            strategy,
            lambda split, a=arrays, s=shuffle: ArrayExamples(a, shuffle=s),
            guard=Guard("roll_back", max_rollbacks=5),
            **options,
        )
        model_dir = os.path.join(directory, variant)
        guarded.train(
            STEPS,
            model_dir=model_dir,
            steps_per_loop=3,
            log_every=1,
            callbacks=[Checkpoint(every=3), JsonLines()],
        )
        batches, skipped = without_poison(arrays, shuffle=shuffle)
        reference = _trainer(strategy, lambda split, b=batches: b, **options)
        reference.train(STEPS, steps_per_loop=3, log_every=1)
        for kind, trainer in ("guarded", guarded), ("reference", reference):
            for i, variable in enumerate(_variables(trainer)):
                results[f"{variant}.{kind}{i}"] = np.array(variable)
        results[f"{variant}.skipped"] = np.array(_skipped(model_dir))
        results[f"{variant}.expected"] = np.array(skipped)
        results[f"{variant}.traces"] = np.array(
            getattr(guarded._run.train_runner, "traces", 1)
        )
        results[f"{variant}.steps"] = np.array(_logged(model_dir))
    return results


def divergence_unordered(strategy, directory):
    """Goes back where nobody knows which batch a step took."""
    trainer = _trainer(
        strategy,
        lambda split: ArrayExamples(
            poisoned([5 * models.BATCH, 9 * models.BATCH]), shuffle=False
        ),
        guard=Guard("roll_back", max_gradient_norm=1e6),
    )
    trainer.train(
        STEPS,
        model_dir=directory,
        steps_per_loop=4,
        log_every=1,
        callbacks=[Checkpoint(every=4), JsonLines()],
    )
    with open(os.path.join(directory, "skipped_batches.json")) as file:
        entries = json.load(file)["skipped"]
    results = {
        f"unordered.variable{i}": np.array(v)
        for i, v in enumerate(_variables(trainer))
    }
    return results | {
        "unordered.entries": np.array(
            [[entry["step"], entry["until_step"]] for entry in entries]
        ),
        "unordered.reasons": np.array([entry["reason"] for entry in entries]),
        "unordered.steps": np.array(_logged(directory)),
    }


def poisoned(numbers):
    """As `models.regression_data`, with some inputs that are no numbers."""
    rng = np.random.default_rng(9)
    x = rng.normal(size=(BATCHES * models.BATCH, models.FEATURES))
    y = np.sin(x.sum(1, keepdims=True))
    x[list(numbers), 0] = np.nan
    return x.astype("float32"), y.astype("float32")


def without_poison(arrays, *, shuffle):
    """The batches that are sound, and the numbers of those that are not."""
    source = IndexedBatches(
        ArrayExamples(arrays), batch_size=models.BATCH, shuffle=shuffle
    )
    found = list(source.read(start=0).take(BATCHES).as_numpy_iterator())
    sound = [bool(np.isfinite(x).all()) for x, _ in found]
    kept = [batch for batch, good in zip(found, sound, strict=True) if good]
    taken = np.flatnonzero(sound)[STEPS - 1]
    stacked = tuple(np.stack(part) for part in zip(*kept, strict=True))
    return (
        tf.data.Dataset.from_tensor_slices(stacked),
        [i for i, good in enumerate(sound) if not good and i < taken],
    )


def _trainer(strategy, data, **options):
    return Trainer(
        model=models.regression_model,
        loss=keras.losses.MeanSquaredError(),
        optimizer=lambda: keras.optimizers.Adam(
            models.LEARNING_RATE, global_clipnorm=models.CLIP_NORM
        ),
        data=data,
        batch_size=models.BATCH,
        strategy=strategy,
        **options,
    )


def _variables(trainer):
    averages = (
        trainer._built.parts.ema.variables if trainer._built.parts.ema else []
    )
    return [*trainer.model.variables, *trainer.optimizer.variables, *averages]


def _skipped(model_dir):
    with open(os.path.join(model_dir, "skipped_batches.json")) as file:
        return [entry["batch"] for entry in json.load(file)["skipped"]]


def _logged(model_dir):
    with open(os.path.join(model_dir, "metrics.jsonl")) as file:
        return [json.loads(line)["step"] for line in file]

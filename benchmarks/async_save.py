"""How long a save holds the training loop: in the background, and not.

    python -m benchmarks.async_save [--megabytes=400] [--rounds=3]

A model is trained with Adam, so that model and optimizer together have the
given size. Rounds with asynchronous and with synchronous saves take turns in
one process. Printed are medians over the saves:

- *held*: from the end of the step before the save to the begin of the next
  one (*capture*), and what the first step after it takes longer than the next
  ones, as it would if it copied what the save still reads (*copies*);
- *slowed*: what all steps take longer than usual while the save goes on: on
  few cores they share these with the writer;
- *written*: from the begin of the save until the checkpoint has its name.
"""

import argparse
import os
import statistics
import tempfile
import time
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np

from trainer import Trainer
from trainer.checkpoint import storage
from trainer_plugins.callbacks.checkpoint import Checkpoint

_STEPS_BETWEEN = 10  # Enough for a save to end before the next one begins.
_BATCH = 4


class Held(NamedTuple):
    """The cost of one save, in seconds; see the top of this file."""

    capture: float
    copies: float
    slowed: float
    written: float

    @property
    def held(self) -> float:
        """What the loop waits for the save."""
        return self.capture + self.copies


class Clock(keras.callbacks.Callback):
    """Notes when each step begins and ends, by step number."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__()
        self._trainer = trainer
        self.begins: dict[int, float] = {}
        self.ends: dict[int, float] = {}

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, float] | None = None
    ) -> None:
        """Notes the begin of the step that comes."""
        self.begins[self._trainer.step + 1] = time.perf_counter()

    def on_train_batch_end(
        self, batch: int, logs: dict[str, float] | None = None
    ) -> None:
        """Notes the end of the step that was done."""
        self.ends[self._trainer.step] = time.perf_counter()

    def seconds(self, step: int) -> float:
        """How long a step took."""
        return self.ends[step] - self.begins[step]


class TimedCheckpoint(Checkpoint):
    """Notes when each checkpoint was written, by step number."""

    def __init__(self, *, asynchronous: bool) -> None:
        super().__init__(every=_STEPS_BETWEEN, asynchronous=asynchronous)
        self.written: dict[int, float] = {}

    def _write(self, snapshot: storage.Snapshot) -> None:
        super()._write(snapshot)
        self.written[snapshot.step] = time.perf_counter()


def make_trainer(megabytes: int) -> Trainer:
    """One layer whose weights are a third of the state."""
    width = 4096
    units = max(1, megabytes * 1_000_000 // (3 * 4 * (width + 1)))
    x = np.ones((_BATCH, width), "float32")
    return Trainer(
        model=lambda: keras.Sequential(
            [keras.Input((width,)), keras.layers.Dense(units)]
        ),
        loss="mse",
        optimizer="adam",
        data=lambda split: (x, np.zeros((_BATCH, units), "float32")),
        batch_size=_BATCH,
        strategy="default",
    )


def one_round(
    trainer: Trainer, directory: str, *, asynchronous: bool
) -> list[Held]:
    """Trains on over two saves; the end's own save is not counted."""
    first, clock = trainer.step, Clock(trainer)
    saves = [first + _STEPS_BETWEEN, first + 2 * _STEPS_BETWEEN]
    saver = TimedCheckpoint(asynchronous=asynchronous)
    trainer.train(
        saves[-1] + _STEPS_BETWEEN,
        steps_per_loop=1,
        log_every=1_000_000,
        verbose=0,
        model_dir=directory,
        callbacks=[clock, saver],
    )
    return [_held(clock, save, saver.written[save]) for save in saves]


def _held(clock: Clock, save: int, written: float) -> Held:
    usual = statistics.median(
        clock.seconds(step) for step in range(save - 7, save)
    )
    during = [
        clock.seconds(step)
        for step in range(save + 1, save + _STEPS_BETWEEN)
        if clock.begins[step] < written
    ]
    return Held(
        capture=clock.begins[save + 1] - clock.ends[save],
        copies=clock.seconds(save + 1)
        - statistics.median(during[1:] or [usual]),
        slowed=sum(during) - len(during) * usual,
        written=written - clock.ends[save],
    )


def main() -> None:
    """Runs the rounds and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    trainer = make_trainer(asked.megabytes)
    found: dict[bool, list[Held]] = {True: [], False: []}
    for _ in range(asked.rounds):
        for asynchronous in (True, False):
            with tempfile.TemporaryDirectory() as directory:
                found[asynchronous] += one_round(
                    trainer, directory, asynchronous=asynchronous
                )
    held_by = {
        kind: statistics.median(save.held for save in saves)
        for kind, saves in found.items()
    }
    print("seconds        held  capture  copies  slowed  written")
    for asynchronous, name in ((True, "background"), (False, "waiting")):
        saves = found[asynchronous]
        held = held_by[asynchronous]
        parts = [statistics.median(part) for part in zip(*saves, strict=True)]
        print(
            f"{name:<12} {held:6.3f}   {parts[0]:6.3f}  {parts[1]:6.3f}"
            f"  {parts[2]:6.3f}   {parts[3]:6.3f}"
        )
    print(
        f"held in the background: {held_by[True] / held_by[False]:.1%} of "
        f"a save that is waited for (the bar: 10 %); "
        f"{len(found[True])} saves each"
    )


if __name__ == "__main__":
    main()

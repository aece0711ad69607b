"""How long a save holds the training loop: in the background, and not.

One layer is trained with Adam, so that model and optimizer together have 400
MB. Rounds with saves in the background and with saves that are waited for take
turns in one process. *Held* is how long a save and the step after it take, less
a usual step.
"""

import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from benchmarks import table

_STEPS_BETWEEN = 10  # Enough for a save to end before the next one begins.
_BATCH, _WIDTH, _UNITS = 4, 4096, 8138


def measure(*, rounds: int) -> Iterator[str]:
    """Measures saves; yields the table.

    Args:
        rounds: of each kind.
    """
    import keras
    import numpy as np

    from trainer import Callback, Trainer
    from trainer_plugins import Checkpoint

    class Clock(Callback):
        """Notes when each step ends, by step number."""

        def __init__(self) -> None:
            super().__init__()
            self.ends: dict[int, float] = {}

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            """Notes it."""
            self.ends[self.run.step] = time.perf_counter()

    trainer = Trainer(
        model=lambda: keras.Sequential(
            [keras.Input((_WIDTH,)), keras.layers.Dense(_UNITS)]
        ),
        loss="mse",
        optimizer="adam",
        data=lambda split: (
            np.ones((_BATCH, _WIDTH), "float32"),
            np.zeros((_BATCH, _UNITS), "float32"),
        ),
        batch_size=_BATCH,
        strategy="default",
    )
    held: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(rounds):
        for background, found in held.items():
            clock = Clock()
            save = trainer.step + _STEPS_BETWEEN
            with tempfile.TemporaryDirectory() as folder:
                trainer.train(
                    save + _STEPS_BETWEEN,
                    steps_per_loop=1,
                    log_every=1_000_000,
                    verbose=0,
                    model_dir=folder,
                    callbacks=[
                        clock,
                        Checkpoint(
                            every=_STEPS_BETWEEN, asynchronous=background
                        ),
                    ],
                )
            usual = statistics.median(
                clock.ends[step] - clock.ends[step - 1]
                for step in range(save - 6, save + 1)
            )
            found.append(clock.ends[save + 1] - clock.ends[save] - usual)
    first, second = (statistics.median(one) for one in held.values())
    yield from table.as_table(
        ("held, background", "held, waiting", "background ÷ waiting"),
        [(f"{first:.3f} s", f"{second:.3f} s", f"{first / second:.2f}")],
    )

"""The learning-rate range test of Smith, 2017 (https://arxiv.org/abs/1506.01186).

The learning rate grows from step to step by a constant factor, until the loss
explodes. Where the loss falls fastest is a good place to begin.
"""

import dataclasses
import math
from typing import Annotated, TypeAlias

import keras
import numpy as np
from annotated_types import Ge, Gt, Le

from trainer.errors import UserError, nearest
from trainer.loop.running_trainer import RunningTrainer
from trainer.loop.training_input import training_input
from trainer.loop.without_trace import without_trace
from trainer.runtime.charts import bar
from trainer.step.logs import Totals
from trainer.step.metrics.carried import INTERVAL
from trainer.step.trials.prepare import prepare

LOW, HIGH, STEPS = 1e-7, 10.0, 100
# As in fastai: the loss is smoothed by this share, and the test is over when it
# is this many times its minimum.
_SMOOTHING, _EXPLODED = 0.98, 4.0
# As in Lightning: the first losses say little, and the last ones explode.
_LEAVE_OUT_FIRST, _LEAVE_OUT_LAST = 10, 1
_WIDTH = 60

Rate: TypeAlias = Annotated[float, Gt(0), Le(1e30)]
Sweep: TypeAlias = Annotated[int, Ge(20), Le(100_000)]


@dataclasses.dataclass(frozen=True)
class Found:
    """What the test has found.

    Attributes:
        rates: the learning rates of its steps.
        losses: the loss of each step.
        smoothed: the same, smoothed.
        suggestion: a learning rate; `None` if the loss did not fall.
        why: a sentence on how it was derived.
    """

    rates: list[float]
    losses: list[float]
    smoothed: list[float]
    suggestion: float | None
    why: str

    def __str__(self) -> str:
        return f"{curve(self)}\n{self.why}"


def curve(found: Found) -> str:
    """The smoothed losses over the learning rate, in three lines."""
    losses, rates = found.smoothed, found.rates
    if not losses:
        return "No step had a finite loss."
    width = min(_WIDTH, len(losses))
    places = [i * len(losses) // width for i in range(width)]
    # What explodes at the end would make the rest flat.
    low = min(losses)
    high = max(min(max(losses), 2 * losses[0]), low)
    span = (high - low) or 1.0
    bars = "".join(bar((losses[i] - low) / span) for i in places)
    lines = [f"loss {low:.4g} to {high:.4g}, smoothed", bars]
    if found.suggestion is not None:
        place = rates.index(found.suggestion) * width // len(rates)
        lines.append(" " * place + "^")
    begin, end = f"{rates[0]:.1e}", f"{rates[-1]:.1e}"
    lines.append(begin + end.rjust(max(width - len(begin), len(end) + 1)))
    return "\n".join(lines)


def find_learning_rate(
    trainer: RunningTrainer,
    *,
    low: float = LOW,
    high: float = HIGH,
    steps: int = STEPS,
    optimizer: str | None = None,
) -> Found:
    """Makes steps with growing learning rates, and sets everything back.

    Args:
        trainer: built.
        low: the first learning rate.
        high: the last one.
        steps: how many there are.
        optimizer: its name, if there are several; the others keep theirs.

    Raises:
        UserError: the learning rate cannot be set, or there is no loss.
    """
    if high <= low:
        raise UserError(
            f"lr_find: high = {high:g} must be greater than low = {low:g}."
        )
    chosen = _optimizer(trainer, optimizer)
    batches = trainer.batches("train")
    trainer.check_data(batches)
    trainer.follow_trainable()
    prepare(trainer.spec, training=True)
    rates, losses, smoothed = [], [], []
    with without_trace(trainer):
        iterator = training_input(trainer, batches, start=trainer.step)
        mean = 0.0
        for number, rate in enumerate(np.geomspace(low, high, steps), 1):
            chosen.learning_rate = float(rate)
            totals = Totals(trainer.parts.metrics, INTERVAL)
            (totals.sums,) = trainer.train_runner(iterator, 1)
            trainer.step += 1
            loss = totals.values().get("loss")
            if loss is None:
                raise UserError(
                    "lr_find needs the loss of each step, but train_step "
                    "returns no value 'loss'."
                )
            if not math.isfinite(loss):
                break
            mean = _SMOOTHING * mean + (1 - _SMOOTHING) * loss
            rates.append(float(rate))
            losses.append(loss)
            # Without the bias towards the initial zero.
            smoothed.append(mean / (1 - _SMOOTHING**number))
            best = min(smoothed)
            if number > _LEAVE_OUT_FIRST and smoothed[-1] > _EXPLODED * best:
                break
    return _found(rates, losses, smoothed, high=high, steps=steps)


def _optimizer(
    trainer: RunningTrainer, name: str | None
) -> keras.optimizers.Optimizer:
    known = trainer.parts.optimizers
    if name is None and len(known) > 1:
        raise UserError(
            "lr_find: there are several optimizers: name one, as in "
            f"lr_find(optimizer={next(iter(known))!r})."
        )
    if name is not None and name not in known:
        raise UserError(
            f"lr_find: no optimizer {name!r}. {nearest(name, known)}"
        )
    chosen = known[name] if name else next(iter(known.values()))
    # Where Keras keeps what it was given; its property is today's value.
    given = getattr(chosen, "_learning_rate", None)
    if isinstance(given, keras.optimizers.schedules.LearningRateSchedule):
        raise UserError(
            f"lr_find sets the learning rate, but {type(chosen).__name__} has "
            f"the schedule {type(given).__name__}. Set learning_rate, such as "
            "--learning_rate=0.001, which takes its place, for this test."
        )
    return chosen


def _found(
    rates: list[float],
    losses: list[float],
    smoothed: list[float],
    *,
    high: float,
    steps: int,
) -> Found:
    def result(suggestion: float | None, why: str) -> Found:
        return Found(rates, losses, smoothed, suggestion, why)

    first = _LEAVE_OUT_FIRST
    lowest = int(np.argmin(smoothed)) if smoothed else 0
    # Beyond its minimum a loss only falls by chance.
    part = smoothed[first : min(lowest + 1, len(smoothed) - _LEAVE_OUT_LAST)]
    if len(part) < 2:
        return result(
            None,
            "No suggestion: the smoothed loss did not fall after the first "
            f"{first} of {len(losses)} steps with a finite loss. Begin with a "
            "lower rate.",
        )
    slopes = np.gradient(np.asarray(part))
    steepest = int(np.argmin(slopes))
    if slopes[steepest] >= 0:
        return result(
            None,
            "No suggestion: the smoothed loss never fell. Try more steps, or "
            "another range.",
        )
    rate = rates[first + steepest]
    if len(rates) < steps:
        end = f"the loss exploded at {rates[-1]:.2g}"
    else:
        end = f"the loss did not explode up to {high:.2g}"
    return result(
        rate,
        f"Suggested learning rate: {rate:.2g}, where the smoothed loss falls "
        f"fastest (step {first + steepest + 1} of {steps}). Its minimum is at "
        f"{rates[lowest]:.2g}; {end}.",
    )

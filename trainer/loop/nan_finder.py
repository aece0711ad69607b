"""`find_nan`: names where the first value that is not finite arises.

Before each graph call the variables are copied. If a step of the call is found
to be bad, the call's steps are made again, one by one, from the copies; and the
bad one once more as Python, see `trainer.step.non_finite`.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from absl import logging

from trainer.data import Batches, feeder
from trainer.loop.rollback import without_skipped
from trainer.loop.running_trainer import RunningTrainer
from trainer.loop.training_input import training_input
from trainer.loop.without_trace import without_trace
from trainer.runtime.graph import graph_function
from trainer.step.divergence_guard import Fault
from trainer.step.forms import Form
from trainer.step.keras.private import native
from trainer.step.non_finite import Finder, looking
from trainer.step.timed_input import Given
from trainer.step.train_step import make_train_step
from trainer.strategy.eager_loop import eagerly


class NanFinder:
    """Finds out why a graph call ended badly.

    Args:
        trainer: built, with a guard, whose steps are looked at.
        batches: its training data.
        ahead: how many batches the data is ahead of the steps.
    """

    def __init__(
        self, trainer: RunningTrainer, batches: Batches, *, ahead: int
    ) -> None:
        self._trainer = trainer
        self._batches = batches
        self._ahead = ahead
        self._variables = [
            native(variable)
            for variable in trainer.model.variables
            if tf.as_dtype(variable.dtype).is_floating
        ]
        self._count = graph_function(self._count_bad)
        # Such as a running minimum, which begins at infinity.
        self._usual = self._bad_variables()
        self._set_back: Callable[[], None] | None = None

    def before(self) -> None:
        """Keeps what the next graph call begins with."""
        self._set_back = self._trainer.state.copies()

    def explain(self, fault: Fault | None, *, count: int) -> Fault | None:
        """Says more about a fault, or finds one that no guard has seen.

        All processes of a run call this at the same step.

        Args:
            fault: what the guard has found in the graph call.
            count: the steps of the call, which are done.

        Returns:
            The fault with its origin; `None` if all is well.
        """
        if fault is None and self._bad_variables() <= self._usual:
            return None
        if (
            fault is not None
            and math.isfinite(fault.loss)
            and math.isfinite(fault.gradient_norm)
        ):
            return fault  # Large, but no NaN.
        trainer = self._trainer
        end = trainer.step
        logging.warning(
            "Something is not finite in the steps from %d to %d: making them "
            "again, to find out where it arises.",
            end - count,
            end,
        )
        with without_trace(trainer):
            found = self._look_again(fault, first=end - count, end=end)
        # None may leave while another still looks.
        trainer.plugin.any_process(False)
        return found

    def _look_again(
        self, fault: Fault | None, *, first: int, end: int
    ) -> Fault:
        trainer, watch = self._trainer, self._trainer.parts.watch
        assert watch is not None
        assert self._set_back is not None
        self._set_back()
        watch.forget()
        trainer.step = first
        iterator = training_input(
            trainer, self._batches, start=first + self._ahead
        )
        for step in range(first, end):
            set_back = trainer.state.copies()
            trainer.train_runner(iterator, 1)
            again = watch.fault()
            if again is None and self._bad_variables() <= self._usual:
                trainer.step = step + 1
                continue
            set_back()
            finder = Finder(trainer.model)
            # The others wait for the chief.
            if trainer.plugin.is_chief:
                finder = self._diagnose(step)
            known = again or Fault(
                step,
                "a variable is not finite",
                finder.loss,
                finder.gradient_norm,
            )
            story = (
                f"which first arises in {finder.found}"
                if finder.found
                else "but run as Python all of it is finite: look for what "
                "differs there, such as rounding in a compiled form, or what "
                "depends on the number of replicas"
            )
            return known._replace(reason=f"{known.reason}, {story}")
        assert fault is not None, "a bad variable has become good"
        return fault._replace(
            reason=f"{fault.reason}, which did not come again"
        )

    def _diagnose(self, step: int) -> Finder:
        """Makes a step as Python; says where its first bad value arises."""
        trainer: Any = self._trainer
        one = trainer
        # More than one replica, or not in this process: a copy on one device.
        if not trainer.plugin.options.takes_stacks:
            one = trainer.on_one_device()
            trainer.state.copy_to(one.state)
        spec = dataclasses.replace(one.spec, form=Form.GRAPH, run_eagerly=True)
        count = one.accumulation_steps
        pieces = feeder(
            without_skipped(self._batches, trainer.model_dir, by_step=True),
            start=step + self._ahead,
            num_replicas=1,
            micro=count,
        )
        iterator = one.plugin.distribute(pieces, training=True)
        finder = Finder(one.model)
        batches = [next(iterator) for _ in range(count)]
        for number, batch in enumerate(batches):
            part = f" of micro-batch {number + 1}" if count > 1 else ""
            finder.look_at_batch(batch, part)
        if finder.found is None:
            with eagerly(), looking(one, finder):
                make_train_step(spec)(Given(batches))
        return finder

    def _bad_variables(self) -> set[int]:
        """The numbers of variables that hold a value that is not finite."""
        if not self._variables:
            return set()
        counts = self._count().numpy().tolist()
        return {number for number, count in enumerate(counts) if count}

    def _count_bad(self) -> tf.Tensor:
        return tf.stack(
            [
                tf.math.count_nonzero(~tf.math.is_finite(one.read_value()))
                for one in self._variables
            ]
        )

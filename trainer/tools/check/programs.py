"""The programs of a run, for a strategy that compiles them in a check."""

import dataclasses
import functools
from typing import Any

import keras
import tensorflow as tf

from trainer.data.batches import counted_part
from trainer.data.feeding import Padded
from trainer.errors import UserError
from trainer.loop.evaluation_sets import EVAL
from trainer.loop.run import Run
from trainer.step.prepare import prepare
from trainer.step.programs import Program
from trainer.step.spec import StepSpec
from trainer.step.timed_input import Given
from trainer.step.train_step import make_eval_step, make_train_step


class RunPrograms:
    """See `trainer.step.programs.Programs`.

    Args:
        run: built and prepared.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._replicas = run.plugin.num_replicas

    def training(self) -> Program:
        """See `Programs.training`."""
        spec, micro = self._run.spec, self._run.spec.accumulation_steps
        step = make_train_step(spec)
        return Program(
            name="training step",
            function=lambda *batches: step(Given(batches)),
            inputs=(self._replica_batch("train", spec),) * micro,
            replicas=self._replicas,
            model=self._run.model,
        )

    def evaluation(self) -> Program:
        """See `Programs.evaluation`."""
        run = self._run
        split = run.sets[0] if run.sets else EVAL
        batch = self._replica_batch(split, run.spec)
        if run.plugin.options.static_shapes:
            rows = counted_part(batch).shape[0]
            batch = Padded(batch, tf.TensorSpec([rows], tf.float32))
        spec = dataclasses.replace(
            run.spec, batches=lambda _: run.batches(split)
        )
        prepare(spec, training=False)
        step = make_eval_step(spec)
        return Program(
            name="evaluation step",
            function=lambda batch: step(Given([batch])),
            inputs=(batch,),
            replicas=self._replicas,
            model=self._run.model,
        )

    def serving(self) -> Program:
        """See `Programs.serving`."""
        model = self._run.built.single_device_model()
        x, _, _ = keras.utils.unpack_x_y_sample_weight(
            self._replica_batch("train", self._run.spec)
        )
        return Program(
            name="export",
            function=functools.partial(model, training=False),
            inputs=(x,),
            replicas=1,
            model=model,
        )

    def _replica_batch(self, split: str, spec: StepSpec) -> Any:
        """The specs of a replica's full batch."""
        micro = spec.accumulation_steps if split == "train" else 1
        size = spec.batches(split).batch_size
        if size is None:
            raise UserError(
                f"The size of the {split} data's batches is not known: set "
                "its batch_size."
            )
        # The first one is the largest where they cannot be equal.
        rows = -(-size // (self._replicas * micro))
        return tf.nest.map_structure(
            lambda one: tf.TensorSpec([rows, *one.shape[1:]], one.dtype),
            self._run.batches(split).element_spec,
        )

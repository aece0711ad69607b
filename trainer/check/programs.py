"""The programs of a run, for a strategy that compiles them in a check."""

import dataclasses
import functools
from typing import Any

import keras
import tensorflow as tf

from trainer.data import exact, feeder, padded
from trainer.loop.running_trainer import RunningTrainer
from trainer.step.eval_step import make_eval_step
from trainer.step.programs import Program
from trainer.step.timed_input import Given
from trainer.step.train_step import make_train_step
from trainer.step.trials.prepare import prepare


class RunPrograms:
    """See `trainer.step.programs.Programs`.

    Args:
        trainer: built and prepared.
    """

    def __init__(self, trainer: RunningTrainer) -> None:
        self._trainer = trainer
        self.batch_size = trainer.batch_size
        self._replicas = trainer.plugin.num_replicas
        self.smallest = self._replicas * trainer.accumulation_steps

    def training(self, batch_size: int | None = None) -> Program:
        """See `Programs.training`."""
        spec, micro = self._trainer.spec, self._trainer.accumulation_steps
        inputs = (self._pieces("train", micro),) * micro
        if batch_size is not None:
            rows = batch_size // self.smallest
            inputs = tf.nest.map_structure(
                lambda one: tf.TensorSpec([rows, *one.shape[1:]], one.dtype),
                inputs,
            )
            spec = dataclasses.replace(
                spec,
                batch_size=batch_size,
                batches=lambda split: _Resized(batch_size),
            )
        step = make_train_step(spec)
        return Program(
            name="training step",
            function=lambda *batches: step(Given(batches)),
            inputs=inputs,
            replicas=self._replicas,
            model=self._trainer.model,
        )

    def evaluation(self) -> Program:
        """See `Programs.evaluation`."""
        prepare(self._trainer.spec, training=False)
        step = make_eval_step(self._trainer.spec)
        return Program(
            name="evaluation step",
            function=lambda batch: step(Given([batch])),
            inputs=(self._pieces("eval", 1),),
            replicas=self._replicas,
            model=self._trainer.model,
        )

    def serving(self) -> Program:
        """See `Programs.serving`."""
        model = self._trainer.single_device_model()
        x, _, _ = keras.utils.unpack_x_y_sample_weight(
            self._pieces("train", self._trainer.accumulation_steps)
        )
        return Program(
            name="export",
            function=functools.partial(model, training=False),
            inputs=(x,),
            replicas=1,
            model=model,
        )

    def _pieces(self, split: str, micro: int) -> Any:
        """The specs of a replica's piece; all of them have one shape."""
        make_pieces = feeder(
            self._trainer.batches(split),
            start=0,
            num_replicas=self._replicas,
            micro=micro,
            fit=exact if split == "train" else padded,
        )
        return make_pieces(range(1)).element_spec


class _Resized:
    """What a step asks of its batches while it is traced, for another size."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size

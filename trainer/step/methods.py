"""What a step does on a replica: the methods that research code overrides.

`trainer.Trainer` is a `BaseStep`; `trainer.step.train_step` calls it.
"""

from typing import Any

import keras
import tensorflow as tf

from trainer.step import gradients as grads
from trainer.step.context import step_context
from trainer.step.gradient_sums import (
    GradientSums,
    Reduced,
    gradient_sums,
    measure,
    reduce_gradients,
)
from trainer.step.logs import StepLogs
from trainer.step.losses import loss_terms
from trainer.step.reductions.all_gather import Gathered, all_gather
from trainer.step.reductions.sums import Average
from trainer.step.spec import StepSpec


class BaseStep:
    """A step of training and of evaluation, in replica context.

    The first five methods are what research code overrides, the others what
    it builds a `train_step` of.
    """

    # Of what is traced now: other calls have others.
    _spec: StepSpec

    @property
    def model(self) -> keras.Model:
        """The model; its variables live in the strategy's scope."""
        return self._spec.model

    @property
    def optimizer(self) -> keras.optimizers.Optimizer:
        """The optimizer; the first one if there are several."""
        return next(iter(self._spec.parts.optimizers.values()))

    def forward(self, x: Any, *, training: bool) -> Any:
        """Calls the model on a replica's inputs."""
        return self.model(x, training=training)

    def per_example_loss(self, x: Any, y: Any, y_pred: Any) -> Any:
        """The loss of each example, before weights and division.

        Args:
            x: inputs of a replica's batch.
            y: its targets.
            y_pred: the model's outputs.

        Returns:
            Float of shape `[batch]` or `[batch, ...]`, or output name to
            such a tensor. Masks and sample weights are applied afterwards,
            and the division by the global batch.
        """
        return loss_terms.per_example(self._spec, y, y_pred)

    def global_loss(self, x: Any, y: Any, y_pred: Any) -> tf.Tensor:
        """A loss over the global batch, such as one over pairs of examples.

        Every replica computes it, from the same numbers. It is added to the
        per-example losses, if there are any. It cannot be combined with sample
        weights or micro-batches.

        Args:
            x: inputs of the global batch.
            y: its targets.
            y_pred: the model's outputs for it.

        Returns:
            A float scalar; it is not divided any further.
        """
        raise NotImplementedError

    def train_step(self, batch: Any) -> StepLogs:
        """One optimizer step on one replica.

        Runs in replica context on the replica's piece of the global batch;
        pieces of a short batch may be smaller, or empty.

        Args:
            batch: `x`, `(x, y)`, `(x, y, sample_weight)`, or whatever the
                data yields.

        Returns:
            Name to `Average` (a replica's own sums, not reduced), to a
            scalar (averaged over replicas and steps), or the result of
            `metric_increments`.
        """
        sums, logs = self.gradient_sums(batch)
        reduced = self.reduce_gradients(sums)
        self.apply_gradients(reduced.gradients)
        return logs

    def eval_step(self, batch: Any) -> StepLogs:
        """Measures one replica's batch.

        Arguments and result are as in `train_step`. Under a strategy with
        static shapes the batch is `(x, y, sample_weight)`, whatever the data
        yields: padding has weight 0.
        """
        _, logs = measure(self._spec, batch, training=False)
        return logs

    def gradient_sums(self, batch: Any) -> tuple[GradientSums, StepLogs]:
        """A replica's sums of loss and gradients, not yet divided.

        Args:
            batch: `x`, `(x, y)` or `(x, y, sample_weight)`.

        Returns:
            The sums, and what the step returns for the batch.
        """
        return gradient_sums(self._spec, batch)

    def reduce_gradients(self, sums: GradientSums) -> Reduced:
        """The gradients of the global loss: one SUM, then the division.

        Args:
            sums: this replica's, over all its micro-batches.

        Returns:
            `gradients`, variable number to gradient, equal on every replica
            and including the regularizers'; and what a guard must know.
        """
        return reduce_gradients(self._spec, sums)

    def gradients(
        self, tape: tf.GradientTape, loss: Average, variables: list[Any]
    ) -> list[grads.Gradient]:
        """The gradient of a global mean.

        Args:
            tape: recorded this replica's part of the loss.
            loss: this replica's sum and count, see `trainer.average`.
            variables: what to differentiate with respect to.

        Returns:
            For each variable the gradient of (sum of totals) / (sum of
            counts) over all replicas, equal on every replica.
        """
        local = tape.gradient(loss.total, [v.value for v in variables])
        # Without examples the local gradient may be NaN, and would spread.
        here = step_context.batch
        if here is not None:
            local, loss = here.or_zeros(local), here.or_nothing(loss)
        if not self._spec.options.reduces_sparse:
            local = grads.densify(local)
        # Gradients and count in one reduction, then one division.
        total, count = grads.reduce_sum((local, loss.count))
        factor = tf.math.divide_no_nan(1.0, count)
        return [grads.scale(gradient, factor) for gradient in total]

    def all_gather(self, structure: Any) -> Gathered:
        """Gathers the rows of all replicas on each of them, differentiably.

        Args:
            structure: tensors of shape `[rows, ...]`, see
                `trainer.step.reductions.all_gather.all_gather`.

        Returns:
            `values`, of the same structure, and `offset`, the first of this
            replica's rows in them.
        """
        return all_gather(structure)

    def apply_gradients(
        self,
        gradients: list[grads.Gradient] | dict[int, grads.Gradient],
        variables: list[Any] | None = None,
        optimizer: str | None = None,
    ) -> None:
        """Clips reduced gradients as the optimizer says, and applies them.

        Args:
            gradients: one for each variable, equal on every replica.
            variables: defaults to the model's trainable variables.
            optimizer: its name, if there are several.
        """
        variables = variables or self.model.trainable_variables
        if isinstance(gradients, dict):
            gradients = [gradients.get(i) for i in range(len(variables))]
        chosen = (
            self._spec.parts.optimizers[optimizer]
            if optimizer
            else self.optimizer
        )
        # Clipping and moments need each row's whole gradient.
        true = grads.rows_once(gradients, dense=self._spec.form.uses_xla)
        if self._spec.parts.watch is not None:
            self._spec.parts.watch.note(true)
        if not grads.takes_rows_as_they_come(chosen):
            gradients = true
        # All replicas assign the same here, so nothing must be weighed by
        # examples.
        with step_context.within(batch=None):
            chosen.apply(gradients, variables)

    def metric_increments(
        self, y: Any, y_pred: Any, sample_weight: Any = None
    ) -> StepLogs:
        """What a batch adds to each metric; a step returns it."""
        metrics = self._spec.parts.metrics
        return metrics.logs(metrics.calls(y, y_pred, sample_weight))

"""A step on a replica: the methods that research code overrides.

`trainer.Trainer` is a `BaseStep`; `trainer.step.train_step` calls it: sums on
each replica, one reduction, one division. See
`trainer.step.losses.loss_terms` for the equation.
"""

from typing import Any, NamedTuple

import keras
import tensorflow as tf

from trainer.errors import UserError
from trainer.runtime.graph import converted
from trainer.step import gradients as grads
from trainer.step.context import step_context
from trainer.step.keras.private import is_of_keras, with_optional
from trainer.step.logs import StepLogs
from trainer.step.losses import loss_terms
from trainer.step.losses.loss_terms import global_term
from trainer.step.losses.outputs import in_floatx, weights_of_classes
from trainer.step.measuring import replica_batch
from trainer.step.reductions.all_gather import Gathered, all_gather
from trainer.step.reductions.sums import Average
from trainer.step.replica_batch import ReplicaBatch
from trainer.step.spec import StepSpec


class GradientSums(NamedTuple):
    """The sums that one replica's batch adds to loss and gradient.

    Attributes:
        gradients: by denominator, variable number to gradient sum.
        loss: by denominator, the sum and the count.
    """

    gradients: dict[str, dict[int, Any]]
    loss: dict[str, Average]


class Reduced(NamedTuple):
    """The values that are equal on all replicas.

    Attributes:
        gradients: variable number to the gradient of the global loss.
        loss: float32 scalar, the loss of the global batch.
    """

    gradients: dict[int, grads.Gradient]
    loss: tf.Tensor


class BaseStep:
    """A step of training and of evaluation, in replica context.

    Research code overrides the first five methods, and builds a `train_step`
    from the others.
    """

    # Of what is traced now: other calls have others.
    _spec: StepSpec

    def forward(self, x: Any, *, training: bool) -> Any:
        """Calls the model on a replica's inputs."""
        model = self._spec.model
        return model(with_optional(model, x), training=training)

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

    def global_loss(self, y: Any, y_pred: Any) -> tf.Tensor:
        """A loss over the global batch, such as one over pairs of examples.

        Every replica computes it, from the same numbers. It is added to the
        per-example losses, if there are any. It cannot be combined with sample
        weights or micro-batches. If it needs parts of the inputs, the data has
        to yield them among the targets, which travel between replicas.

        Args:
            y: targets of the global batch.
            y_pred: the model's outputs for it.

        Returns:
            A float scalar; it is not divided any further.
        """
        raise NotImplementedError

    def train_step(self, batch: Any) -> StepLogs:
        """One optimizer step on one replica.

        Runs in replica context on the replica's part of the global batch; the
        parts of a short batch may have different sizes. A replica that gets
        none of it has one example of zeros instead, and its results do not
        count.

        Args:
            batch: `x`, `(x, y)`, `(x, y, sample_weight)`, or any other
                structure that the data yields.

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
        static shapes the batch is always `(x, y, sample_weight)`, as padding
        has weight 0.
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
        spec = self._spec
        # The tape watches the tf.Variables inside Keras variables.
        variables = [v.value for v in spec.model.trainable_variables]
        here = replica_batch(spec, batch, training=True)
        # Persistent: each denominator needs a gradient of its own, as they are
        # only known after the reduction.
        with tf.GradientTape(persistent=True) as tape:
            loss, logs = measure(spec, batch, training=True)
            if not loss:
                raise UserError(
                    "There is no loss: pass loss=..., override "
                    "per_example_loss or global_loss, or call add_loss in the "
                    "model."
                )
            # Within the tape, so that the float16 gradients themselves are
            # scaled.
            scaled = {
                name: one.total * _loss_factor(spec)
                for name, one in loss.items()
            }
        found = {}
        for name, total in scaled.items():
            # Of no example it counts nothing.
            local = here.or_zeros(tape.gradient(total, variables))
            # The micro-batches' sparse gradients have different numbers of
            # rows, which a tf.while_loop cannot carry.
            if spec.accumulation_steps > 1 or not spec.options.reduces_sparse:
                local = grads.densify(local)
            found[name] = {
                i: gradient
                for i, gradient in enumerate(local)
                if gradient is not None
            }
        return GradientSums(found, loss), logs

    def reduce_gradients(self, sums: GradientSums) -> Reduced:
        """The gradients of the global loss: one SUM, then the division.

        Args:
            sums: this replica's, over all its micro-batches.

        Returns:
            `gradients`, variable number to gradient, equal on every replica
            and including the regularizers'; and the loss.
        """
        sums = grads.reduce_sum(sums)
        scale = _loss_factor(self._spec)
        loss, of_penalty = _regularization(self._spec.model)
        gradients: dict[int, grads.Gradient] = {}
        for name, found in sums.gradients.items():
            total, count = sums.loss[name]
            # A batch that a mask or the weights leave nothing of has a loss of
            # zero.
            loss += tf.math.divide_no_nan(total, count)
            # One scalar factor for each denominator: division and loss scale
            # in one pass over the gradient.
            factor = tf.math.divide_no_nan(1.0, count)
            for i, gradient in found.items():
                divided = grads.scale(gradient, factor / scale)
                gradients[i] = grads.add(gradients.get(i), divided)
        for i, gradient in of_penalty.items():
            gradients[i] = grads.add(gradients.get(i), gradient)
        return Reduced(gradients, loss)

    def gradients(
        self, tape: tf.GradientTape, loss: Average, variables: list[Any]
    ) -> list[grads.Gradient]:
        """The gradient of a global mean.

        Args:
            tape: recorded this replica's part of the loss.
            loss: this replica's sum and count, see `trainer.average`.
            variables: the variables to differentiate with respect to.

        Returns:
            For each variable the gradient of (sum of totals) / (sum of
            counts) over all replicas, equal on every replica.
        """
        local = tape.gradient(loss.total, [v.value for v in variables])
        here = step_context.batch
        if here is not None:  # Of no example it counts nothing.
            local, loss = here.or_zeros((local, loss))
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
        variables = variables or self._spec.model.trainable_variables
        if not variables:
            return  # As in `fit`.
        if isinstance(gradients, dict):
            gradients = [gradients.get(i) for i in range(len(variables))]
        optimizers = self._spec.parts.optimizers
        chosen = optimizers[optimizer or next(iter(optimizers))]
        # Clipping and moments need each row's whole gradient.
        true = grads.rows_once(gradients, dense=self._spec.form.uses_xla)
        if not grads.takes_rows_as_they_come(chosen):
            gradients = true
        # All replicas assign the same here, so nothing must be weighed by
        # examples.
        pairs = list(zip(gradients, variables, strict=True))
        with step_context.within(batch=None):
            # As `fit` does: it is what optimizers of one's own override.
            chosen.apply_gradients(pairs)

    def metric_increments(
        self, y: Any, y_pred: Any, sample_weight: Any = None
    ) -> StepLogs:
        """Returns what a batch adds to each metric; a step returns it."""
        metrics = self._spec.parts.metrics
        return metrics.logs(metrics.calls(y, y_pred, sample_weight))


def measure(
    spec: StepSpec, batch: Any, *, training: bool
) -> tuple[dict[str, Average], StepLogs]:
    """Runs the model on a replica's batch.

    Args:
        spec: whose step it is.
        batch: `x`, `(x, y)` or `(x, y, sample_weight)`.
        training: whether to train or to evaluate.

    Returns:
        The sums of the loss by denominator, and what a step returns.
    """
    here = replica_batch(spec, batch, training=training)
    x, y, weight = keras.utils.unpack_x_y_sample_weight(here.batch)
    with step_context.within(batch=here):
        y_pred = converted(spec.methods.forward)(x, training=training)
        # As `fit` does. NumPy targets are often float64, and a loss would
        # compute in that.
        y = in_floatx(y)
        weights = weight
        if training and spec.class_weight is not None:
            weights = weights_of_classes(y, weight, spec.class_weight)
        terms, by_output = _terms(
            spec, (x, y, weights), y_pred, here=here, training=training
        )
    sums = loss_terms.sums_of(terms, here)
    logs = loss_terms.loss_logs(spec.model, terms, here) | by_output
    here.settled |= logs.keys()
    increments = converted(spec.methods.metric_increments)
    return sums, logs | increments(y, y_pred, weights)


def _terms(
    spec: StepSpec,
    batch: Any,
    y_pred: Any,
    *,
    here: ReplicaBatch,
    training: bool,
) -> tuple[list[loss_terms.Term], StepLogs]:
    """The terms of a batch's loss, and each output's loss for the logs."""
    x, y, weights = batch
    if not is_of_keras(spec.model, "compute_loss"):
        term = loss_terms.model_term(
            spec.model, batch, y_pred, training=training
        )
        return [term], {}
    values = converted(spec.methods.per_example_loss)(x, y, y_pred)
    if step_context.probe is not None:
        step_context.probe.take_losses(values)
    terms, by_output = loss_terms.terms(
        spec, values, y_pred=y_pred, sample_weight=weights, here=here
    )
    if spec.has_own("global_loss"):
        terms.append(global_term(spec, y, y_pred, here=here))
    terms += loss_terms.added_terms(spec.model, here, spec.added_losses)
    return terms, by_output


def _loss_factor(spec: StepSpec) -> tf.Tensor:
    """The factor of the loss that keeps float16 gradients in range."""
    loss_scale = spec.parts.loss_scale
    if loss_scale is None:
        return tf.constant(1.0)
    # The sum of a batch would overflow where its mean does not.
    return loss_scale.value / spec.batch_size


def _regularization(
    model: keras.Model,
) -> tuple[tf.Tensor, dict[int, grads.Gradient]]:
    """The penalty and its gradient, by the numbers of the variables.

    Equal on every replica, so never reduced: it counts once.
    """
    variables = loss_terms.regularized_variables(model)
    if not variables:
        return tf.constant(0.0), {}
    numbers = {id(v): i for i, v in enumerate(model.trainable_variables)}
    # A tape of its own, after the reduction: the penalty is equal on every
    # replica, and a SUM would count it once for each.
    with tf.GradientTape() as tape:
        penalty = loss_terms.regularization(variables)
    found = tape.gradient(penalty, [v.value for v in variables])
    return penalty, {
        numbers[id(v)]: gradient
        for v, gradient in zip(variables, found, strict=True)
    }

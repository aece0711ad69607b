"""Every private name of Keras that this framework relies on.

They are in this one file, so that it is the only one to read before an upgrade
of Keras. What a module or class must have is required as this is imported,
what only an object has as the run is built: see `require`.
"""

import collections
import contextlib
import functools
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.runtime.private_names import require
from trainer.step.context import step_context

# Where an object of Keras has the names of what `put` has replaced.
_PUT = "_trainer_put"
# Where what we have compiled has what the user had compiled.
_COMPILED_FROM = "_trainer_compiled_from"
_LOSSES = "keras.src.losses.loss"
_COMPILE = "keras.src.trainers.compile_utils"
_STATE = "keras.src.backend.common.global_state"
# Where `_get_logits` finds them: as an attribute, and before these operations.
_LOGITS, _ACTIVATIONS = "_keras_logits", ("Softmax", "Sigmoid")

_get_mask = require("keras.src.backend", "get_keras_mask")
require("keras.src.backend.tensorflow.nn", "_get_logits")
_FunctionLoss = require("keras.src.losses.losses", "LossFunctionWrapper")
_CompileLoss = require(_COMPILE, "CompileLoss")
metric_by_shape = require(_COMPILE, "get_metric")
loss_by_shape = require(_COMPILE, "get_loss")
_Functional = require("keras.src.models.functional", "Functional")
_get_global = require(_STATE, "get_global_attribute")
_set_global = require(_STATE, "set_global_attribute")
seed_dtype = require("keras.src.backend", "random_seed_dtype")
object_name = require("keras.src.utils.naming", "get_object_name")
require(keras.Layer, "_flatten_layers")
require(keras.Layer, "_get_own_losses")
require(keras.layers.BatchNormalization, "_moments")
require(keras.optimizers.Optimizer, "_all_reduce_sum_gradients")


def native(variable: Any) -> tf.Variable:
    """The `tf.Variable` inside a Keras variable."""
    if not isinstance(variable, keras.Variable):
        return variable
    # Its `value` is a tensor of another dtype within layers of mixed precision.
    found: tf.Variable = require(variable, "_value")
    return found


def keras_mask(tensor: Any) -> tf.Tensor | None:
    """The mask that masking layers attached to an output, if any."""
    return _get_mask(tensor)


def attached(tensor: Any) -> dict[str, tf.Tensor]:
    """The attributes that Keras reads off a tensor.

    Its crossentropies, losses and metrics alike, compute from the logits of a
    softmax or sigmoid where they find them.
    """
    found = {"_keras_mask": keras_mask(tensor)}
    logits = getattr(tensor, _LOGITS, None)
    is_symbolic = isinstance(tensor, tf.Tensor) and not hasattr(tensor, "numpy")
    if logits is None and is_symbolic and tensor.op.type in _ACTIVATIONS:
        logits = tensor.op.inputs[0]
    found[_LOGITS] = logits
    return {name: one for name, one in found.items() if one is not None}


def attach(tensor: tf.Tensor, given: dict[str, tf.Tensor]) -> tf.Tensor:
    """A tensor with what `attached` has found at another one."""
    if given:
        # A copy: it must not be seen where the tensor is used elsewhere.
        tensor = tf.identity(tensor)
        for name, one in given.items():
            setattr(tensor, name, one)
    return tensor


def tensors_apart(
    structure: Any,
) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """The tensors of a structure, those that they carry among them.

    These are attributes, which slicing, gathering and reducing lose.

    Returns:
        The tensors, and a function that puts others in their places.
    """
    parts = [
        tf.convert_to_tensor(part)
        if isinstance(part, np.ndarray | keras.Variable)
        else part
        for part in tf.nest.flatten(structure)
    ]
    constants = [None if tf.is_tensor(part) else part for part in parts]
    numbers = [i for i, part in enumerate(parts) if tf.is_tensor(part)]
    carried = [
        (i, name, tf.convert_to_tensor(one))
        for i in numbers
        for name, one in attached(parts[i]).items()
    ]

    def put_back(given: Sequence[Any]) -> Any:
        made = list(constants)
        for i, tensor in zip(numbers, given, strict=False):
            made[i] = tensor
        for (i, name, _), one in zip(
            carried, given[len(numbers) :], strict=True
        ):
            made[i] = attach(made[i], attached(made[i]) | {name: one})
        return tf.nest.pack_sequence_as(structure, made)

    tensors = [parts[i] for i in numbers] + [one for *_, one in carried]
    return tensors, put_back


# Layers.


def all_layers(model: keras.Model) -> Iterator[keras.Layer]:
    """The model and every layer below it, each once."""
    return iter(model._flatten_layers())


def symbolic_inputs(model: keras.Model) -> dict[str, Any]:
    """The symbolic inputs of a model, by the names that its data has in a dict.

    Returns:
        Empty where they are not known, as of a subclass with a `call`, or are
        nested.
    """
    known: Any = model
    if isinstance(model, keras.Sequential):
        known = require(model, "_functional")
    if not isinstance(known, _Functional):
        return {}
    struct = require(known, "_inputs_struct")
    if not isinstance(struct, dict):
        return {one.name: one for one in keras.tree.flatten(struct)}
    nested = any(map(keras.tree.is_nested, struct.values()))
    return {} if nested else dict(struct)


def is_optional(tensor: keras.KerasTensor) -> bool:
    """Whether an input of a model may be `None`."""
    made_by = require(tensor, "_keras_history").operation
    return bool(getattr(made_by, "optional", False))


def with_optional(model: keras.Model, x: Any) -> Any:
    """Inputs by name, with `None` for optional ones that are left out."""
    if not isinstance(x, dict):
        return x
    wanted = symbolic_inputs(model)
    return {name: None for name in wanted if is_optional(wanted[name])} | x


def symbolic_outputs(model: keras.Model) -> Any:
    """A model's symbolic outputs; `None` if they are not known yet."""
    try:
        # A Sequential model has no `output` of its own.
        if isinstance(model, keras.Sequential):
            return model.outputs[0]
        return model.output
    except (AttributeError, ValueError, TypeError):
        return None


def compiled_with(model: keras.Model) -> dict[str, Any]:
    """Returns the arguments of `compile` that the user has given a model.

    Returns:
        The arguments of `compile` by name, with the optimizer that it has set;
        empty before any call.
    """
    mark, optimizer = left_by_compile(model)
    # Not the name that `compile` was given: what is set on the object counts.
    found = {} if mark is None else {**mark.config, "optimizer": optimizer}
    return {name: one for name, one in found.items() if one is not None}


def left_by_compile(model: keras.Model) -> tuple[Any, Any]:
    """Returns the result of the user's last call of `compile`.

    Returns:
        What tells it from others, and the optimizer that it set; `None` and
        `None` before any call.
    """
    if not model.compiled:
        return None, None
    config = require(model, "_compile_config")
    return vars(config).get(_COMPILED_FROM, (config, model.optimizer))


def compile_for_callbacks(
    model: keras.Model, optimizer: keras.optimizers.Optimizer
) -> None:
    """Lets Keras' callbacks find what they read of a compiled model."""
    left = left_by_compile(model)
    # Not a `compile` of the model's own, which may take other arguments.
    keras.Model.compile(
        model,
        **{
            # What the user has compiled it with is saved with it.
            **compiled_with(model),
            "optimizer": optimizer,
            "jit_compile": False,
        },
        # Keras would wrap the optimizer in a loss scale of its own.
        auto_scale_loss=False,
    )
    vars(require(model, "_compile_config"))[_COMPILED_FROM] = left


def lambda_options(layer: keras.layers.Lambda) -> dict[str, Any]:
    """Returns arguments for a copy of a `Lambda`, with its own functions.

    `get_config` has their code instead, which Keras refuses to read, and which
    has lost the names that it uses.
    """
    return {
        **keras.Layer.get_config(layer),
        "function": layer.function,
        "output_shape": require(layer, "_output_shape"),
        "mask": layer.mask,
        "arguments": layer.arguments,
    }


def put(owner: Any, name: str, value: Any) -> None:
    """Replaces an attribute of one object of Keras, such as a method.

    Not through Keras' own `__setattr__`, which would track it.
    """
    require(owner, name)
    object.__setattr__(owner, name, value)
    vars(owner)[_PUT] = put_names(owner) | {name}


def put_names(owner: Any) -> frozenset[str]:
    """The attributes that `put` has replaced, and itself."""
    found: frozenset[str] = vars(owner).get(_PUT, frozenset({_PUT}))
    return found


@functools.cache
def kept_by_keras() -> frozenset[str]:
    """The attributes in which Keras keeps what it knows of an object.

    Of layers, models and optimizers: how they are connected, tracked,
    compiled and traced.
    """
    inputs, optimizer = keras.Input((1,)), keras.optimizers.Optimizer(0.1)
    made = keras.Layer(), keras.Sequential([inputs]), optimizer
    functional = keras.Model(inputs, inputs)
    functional.compile(optimizer)
    found = {name for one in (*made, functional) for name in vars(one)}
    later = ("history", "_eval_epoch_iterator", "_compiled_trainable_state")
    excluded = "_exclude_from_weight_decay"
    found |= {*later, excluded, f"{excluded}_cache"}
    # A layer's is no part of its configuration.
    return frozenset(found - {"activity_regularizer"})


def replace_moments(
    layer: keras.layers.BatchNormalization, moments: Callable[..., Any]
) -> None:
    """Replaces how a synchronized layer takes its statistics.

    Args:
        layer: it is also taken for synchronized while a step is tried.
        moments: a function of inputs, mask (or `None`) and the axes to reduce.
    """
    own, axes = layer._moments, require(layer, "_reduction_axes")

    def take(inputs: Any, mask: Any) -> Any:
        # Keras calls a model once to build it, outside of replicas, where
        # nothing can be reduced.
        on_replica = tf.distribute.get_replica_context() is not None
        is_tried = step_context.probe is not None
        if on_replica and (layer.synchronized or is_tried):
            return moments(inputs, mask, axes)
        return own(inputs, mask)

    put(layer, "_moments", take)


# Losses.


def function_loss(
    function: Callable[..., Any], name: str | None = None
) -> keras.losses.Loss:
    """A function of (y_true, y_pred) as the loss that `compile` makes of it.

    It aligns `[batch]` with `[batch, 1]`, which would otherwise broadcast to
    `[batch, batch]`.
    """
    return _FunctionLoss(function, name=name or object_name(function))


def function_of_loss(
    loss: keras.losses.Loss | None,
) -> tuple[Callable[..., Any] | None, dict[str, Any]]:
    """The function that a loss calls, and its options, such as `axis`.

    Returns:
        `None` for a loss whose `call` is its own.
    """
    if not isinstance(loss, _FunctionLoss):
        return None, {}
    if type(loss).call is not _FunctionLoss.call:
        return None, {}
    return loss.fn, dict(require(loss, "_fn_kwargs"))


def losses_at(
    losses: Any, outputs: Any, names: Sequence[str]
) -> list[tuple[Any, ...]]:
    """How `compile` understands a structure of losses.

    Args:
        losses: its leaves have a `loss`, perhaps `None`, and a `weight`.
        outputs: a structure.
        names: of its leaves; empty where they have none.

    Returns:
        Part of `outputs`, loss, weight and label of each loss.

    Raises:
        LookupError, TypeError: there is no such part.
    """
    built = _CompileLoss(None)
    found = built._flat_losses = []
    named = keras.tree.pack_sequence_as(outputs, [one or None for one in names])
    require(built, "_build_nested")(outputs, outputs, losses, named, ())
    return [
        (functools.reduce(operator.getitem, path, outputs), *rest)
        for path, *rest in found
    ]


def is_of_keras(model: keras.Model, name: str) -> bool:
    """Whether a method of a model is Keras' own."""
    if name in vars(model):
        return False
    owner = next((k for k in type(model).__mro__ if name in vars(k)), None)
    # A model of Keras that has a loss of its own.
    if name == "compute_loss" and owner is keras.distillation.Distiller:
        return False
    return owner is None or owner.__module__.partition(".")[0] == "keras"


def loss_of_model(model: keras.Model, *batch: Any, training: bool) -> Any:
    """Calls a model's own `compute_loss`, which may not take `training`.

    Args:
        model: compiled.
        *batch: inputs, targets, outputs and sample weights.
        training: whether to train or to evaluate.
    """
    return require(model, "_compute_loss")(*batch, training=training)


class _ThreadOwn:
    """A list or a set with separate contents in each thread.

    It has those methods that Keras uses on `Layer._losses` and `_loss_ids`.

    Args:
        kind: what it is in each thread.
    """

    def __init__(self, kind: type[list[Any]] | type[set[Any]]) -> None:
        self._kind = kind

    @property
    def _items(self) -> Any:
        return step_context.added_losses.setdefault(self, self._kind())

    def __getitem__(self, index: Any) -> Any:
        return self._items[index]

    def __contains__(self, item: Any) -> bool:
        return item in self._items

    def __getattr__(self, name: str) -> Any:  # append, add, extend and clear.
        return getattr(self._items, name)


def separate_added_losses(model: keras.Model) -> None:
    """Keeps apart what replicas, which trace in threads, pass to `add_loss`.

    A layer has one list, and one set of what is in it while its variables are
    not assigned to; a replica that waits for others in a reduction would then
    find their losses among its own, or its own no more.
    """
    for layer in all_layers(model):
        put(layer, "_losses", _ThreadOwn(list))
        put(layer, "_loss_ids", _ThreadOwn(set))


def added_losses(model: keras.Model) -> list[tuple[str, tf.Tensor]]:
    """Returns the values of `add_loss` in the last call, with layer names.

    It includes activity regularizers, but not weight regularizers.
    """
    return [
        (layer.name, value)
        for layer in all_layers(model)
        for value in layer._get_own_losses()
    ]


# Metrics.

# These make their variables in the first update.
_BUILT_LATE = (
    keras.metrics.AUC,
    keras.metrics.FBetaScore,
    keras.metrics.R2Score,
)


def is_built(metric: keras.Metric) -> bool:
    """Whether a metric has the variables of its state already."""
    if isinstance(metric, _BUILT_LATE):
        return bool(require(metric, "_built"))
    return bool(metric.variables)


def layer_metrics(model: keras.Model) -> list[tuple[keras.Layer, keras.Metric]]:
    """The metrics that layers keep, each once, with the layer that does."""
    found: dict[int, tuple[keras.Layer, keras.Metric]] = {}
    for layer in all_layers(model):
        # A metric may be shared by layers: the first one is named.
        for metric in require(layer, "_metrics"):
            found.setdefault(id(metric), (layer, metric))
    return list(found.values())


@contextlib.contextmanager
def fresh_names() -> Iterator[None]:
    """Lets Keras number names from the start, whatever was made before."""
    name = "object_name_uids"
    with _global_attributes({name: collections.defaultdict(int)}):
        yield


# Optimizers.


def count_steps_natively(optimizer: keras.optimizers.Optimizer) -> None:
    """Makes `optimizer.iterations` count in one operation.

    Keras reads the counter, adds one and writes it. If two parameter-server
    workers do so at once, one update is lost.
    """
    counter = require(optimizer, "_iterations")
    put(
        counter,
        "assign_add",
        # A number as it is: it becomes a constant where the variable is, while
        # a tensor would be sent there in each step.
        lambda value: native(counter).assign_add(
            tf.cast(value, counter.dtype) if tf.is_tensor(value) else value
        ),
    )


def replace_own_reduction(optimizer: keras.optimizers.Optimizer) -> None:
    """Makes `optimizer.apply` take gradients that are already reduced.

    Keras clips first and reduces across replicas afterwards; the step here
    reduces first, so that clipping sees the whole global batch's gradient.
    """
    # A function, which a copy of the optimizer shares, where a method's object
    # would be copied as well.
    name = "_all_reduce_sum_gradients"
    put(optimizer, name, lambda gradients: gradients)


def bind_to(
    optimizer: keras.optimizers.Optimizer, strategy: tf.distribute.Strategy
) -> None:
    """Lets an optimizer that was made elsewhere be used in a scope."""
    if require(optimizer, "_distribution_strategy") is not strategy:
        put(optimizer, "_distribution_strategy", strategy)


def trained_by(optimizer: keras.optimizers.Optimizer) -> list[Any]:
    """The variables that an optimizer was built for."""
    return list(require(optimizer, "_trainable_variables"))


def optimizer_config(optimizer: keras.optimizers.Optimizer) -> dict[str, Any]:
    """What makes an optimizer again, with its schedule or function itself.

    Their classes need not be registered with Keras, nor say how to make them.
    """
    name = "_learning_rate"
    rate = require(optimizer, name)
    if isinstance(rate, keras.Variable):
        return optimizer.get_config()
    put(optimizer, name, tf.constant(0.0))
    try:
        config = optimizer.get_config()
    finally:
        put(optimizer, name, rate)
    return {**config, "learning_rate": rate}


def excludes_variables(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether some variables are excluded from weight decay as objects."""
    return bool(getattr(optimizer, "_exclude_from_weight_decay", ()))


# Callbacks.


def profiles_batches(callback: keras.callbacks.Callback) -> bool:
    """Whether a callback is a `TensorBoard` that traces some batches."""
    is_board = isinstance(callback, keras.callbacks.TensorBoard)
    return is_board and bool(require(callback, "_should_trace"))


# What is global in Keras.

_own_scaling = require(_LOSSES, "scale_loss_for_distribution")


def _scale(value: Any) -> Any:
    """Leaves what a loss returns in a step whole, under any strategy.

    Keras divides it by the number of replicas, so that their sum is the mean.
    Here means are weighed by examples instead.
    """
    return _own_scaling(value) if step_context.batch is None else value


# Each call of a loss looks the function up in its module.
vars(sys.modules[_LOSSES])[_own_scaling.__name__] = _scale


def seed_generators(
    model: keras.Model,
) -> list[tuple[str, keras.random.SeedGenerator]]:
    """The seed generators of a model, with their layers' names, in order."""
    found: dict[int, tuple[str, keras.random.SeedGenerator]] = {}
    for layer in all_layers(model):
        for generator in require(layer, "_seed_generators"):
            # Layers may share one: each is numbered once, in the order of
            # layers.
            found[id(generator)] = layer.name, generator
    return list(found.values())


def unseeded_drawn_from(stand_in: Any) -> contextlib.AbstractContextManager:
    """Lets `keras.random` draw from another generator where no seed is given.

    Otherwise such draws, in this thread, come from one generator of the
    process, whose state no checkpoint holds.

    Args:
        stand_in: an object with the `next` of a seed generator.
    """
    name = require("keras.src.random.seed_generator", "GLOBAL_SEED_GENERATOR")
    return _global_attributes({name: stand_in})


def call_state() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Remembers what Keras knows of the call of a layer that is under way.

    Returns:
        A context in which it knows the same, for a call that is repeated
        later: whether the model trains, and the dtype that variables are cast
        to.
    """
    names = "current_call_ctx", "autocast_scope"
    here = {name: _get_global(name) for name in names}
    return lambda: _global_attributes(here)


@contextlib.contextmanager
def _global_attributes(values: dict[str, Any]) -> Iterator[None]:
    """Sets what is global in this thread."""
    before = {name: _get_global(name) for name in values}
    for name, value in values.items():
        _set_global(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            _set_global(name, value)

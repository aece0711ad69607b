"""Every private name of Keras that this framework relies on.

Each function checks that the name is there, so that an upgrade of Keras that
moves one fails at start-up with a sentence, not with a wrong number. They are
all in this one file, so that it is the only one to read before an upgrade.
"""

import collections
import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from trainer.step.model.thread_list import ThreadList


def native(variable: Any) -> tf.Variable:
    """The `tf.Variable` inside a Keras variable."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def keras_mask(tensor: Any) -> tf.Tensor | None:
    """The mask that masking layers attached to an output, if any."""
    return getattr(tensor, "_keras_mask", None)


def set_keras_mask(tensor: tf.Tensor, mask: tf.Tensor) -> None:
    """Attaches a mask to a tensor, as masking layers do."""
    tensor._keras_mask = mask


def function_loss(function: Callable[..., Any]) -> keras.losses.Loss:
    """A function of (y_true, y_pred) as the loss that `compile` makes of it.

    It aligns `[batch]` with `[batch, 1]`, which would otherwise broadcast to
    `[batch, batch]`.

    Raises:
        RuntimeError: this version of Keras does that elsewhere.
    """
    # A functools.partial or an object has no name.
    name = getattr(function, "__name__", "loss")
    return _function_loss_class()(function, name=name)


def function_of_loss(
    loss: keras.losses.Loss,
) -> tuple[Callable[..., Any] | None, dict[str, Any]]:
    """The function that a loss calls, and its options, such as `axis`.

    Returns:
        `None` for a loss whose `call` is its own.
    """
    kind = _function_loss_class()
    if not isinstance(loss, kind) or type(loss).call is not kind.call:
        return None, {}
    return loss.fn, dict(loss._fn_kwargs)


def _function_loss_class() -> Any:
    # The base class of Keras' own losses has no public name.
    kind = keras.losses.MeanSquaredError.__base__
    if kind.__name__ != "LossFunctionWrapper":
        raise RuntimeError(
            f"keras {keras.__version__}: LossFunctionWrapper is gone; targets "
            "and outputs of losses would not be aligned."
        )
    return kind


def leave_losses_whole(is_in_step: Callable[[], bool]) -> None:
    """Makes a Keras loss, called in a step, the same under any strategy.

    Keras divides what a loss returns by the number of replicas, so that their
    sum is the mean. Here means are weighed by examples instead.

    Args:
        is_in_step: whether this thread traces or runs a step.

    Raises:
        RuntimeError: this version of Keras divides elsewhere.
    """
    name = "scale_loss_for_distribution"
    # The function is looked up in this module by each call of a loss.
    module = sys.modules[keras.losses.Loss.__module__]
    own = getattr(module, name, None)
    if not callable(own):
        raise RuntimeError(
            f"keras {keras.__version__}: {name} is gone; losses in layers and "
            "steps would depend on the number of replicas."
        )
    if hasattr(own, "is_in_step"):
        return  # It has been replaced already, once for the process.

    def scale(value: Any) -> Any:
        return value if is_in_step() else own(value)

    scale.is_in_step = is_in_step  # type: ignore[attr-defined]
    setattr(module, name, scale)


def count_steps_natively(optimizer: keras.optimizers.Optimizer) -> None:
    """Makes `optimizer.iterations` count in one operation.

    Keras reads the counter, adds one and writes it. If two parameter-server
    workers do so at once, one update is lost.

    Raises:
        RuntimeError: this version of Keras counts elsewhere.
    """
    counter = getattr(optimizer, "_iterations", None)
    if not isinstance(counter, keras.Variable):
        raise RuntimeError(
            f"keras {keras.__version__}: {type(optimizer).__name__}"
            "._iterations is gone; concurrent workers would lose counts."
        )
    # Not through Keras' own __setattr__, which would track the function.
    object.__setattr__(
        counter,
        "assign_add",
        # A number as it is: it becomes a constant where the variable is, while
        # a tensor would be sent there in each step.
        lambda value: native(counter).assign_add(
            tf.cast(value, counter.dtype) if tf.is_tensor(value) else value
        ),
    )


def replace_own_reduction(
    optimizer: keras.optimizers.Optimizer, send: Callable[[Any], Any]
) -> None:
    """Makes `optimizer.apply` take gradients that are already reduced.

    Keras clips first and reduces across replicas afterwards; the step here
    reduces first, so that clipping sees the whole global batch's gradient.

    Args:
        optimizer: the optimizer.
        send: is called in place of the reduction; see `StrategyPlugin.send`.

    Raises:
        RuntimeError: this version of Keras reduces elsewhere.
    """
    hook = "_all_reduce_sum_gradients"
    if not callable(getattr(optimizer, hook, None)):
        raise RuntimeError(
            f"keras {keras.__version__}: {type(optimizer).__name__}.{hook} is "
            "gone; gradients would be reduced twice. Use a keras release that "
            "this version of trainer was tested with."
        )
    # Not through Keras' own __setattr__, which would track the function.
    # A function, which a copy of the optimizer shares, where a method's object
    # would be copied as well.
    object.__setattr__(optimizer, hook, lambda gradients: send(gradients))


def symbolic_inputs(model: keras.Model) -> dict[str, Any]:
    """The symbolic inputs of a model, by the names that its data has in a dict.

    Returns:
        Empty where they are not known, as of a subclass with a `call`, or are
        nested.
    """
    known = getattr(model, "_functional", None) or model
    struct = getattr(known, "_inputs_struct", None)
    if struct is None:
        return {}
    if not isinstance(struct, dict):
        return {one.name: one for one in keras.tree.flatten(struct)}
    nested = any(map(keras.tree.is_nested, struct.values()))
    return {} if nested else dict(struct)


def symbolic_outputs(model: keras.Model) -> Any:
    """A model's symbolic outputs; `None` if they are not known yet."""
    try:
        # A Sequential model has no `output` of its own.
        if isinstance(model, keras.Sequential):
            return model.outputs[0]
        return model.output
    except (AttributeError, ValueError, TypeError):
        return None


def layer_of(tensor: Any) -> keras.Layer | None:
    """The layer that made a symbolic tensor; `None` if none is known."""
    made_by = getattr(
        getattr(tensor, "_keras_history", None), "operation", None
    )
    return made_by if isinstance(made_by, keras.Layer) else None


def all_layers(model: keras.Model) -> Iterator[keras.Layer]:
    """The model and every layer below it, each once."""
    return iter(model._flatten_layers())


def separate_added_losses(model: keras.Model) -> None:
    """Keeps apart what replicas, which trace in threads, pass to `add_loss`.

    A layer has one list, and a replica that waits for others in a reduction
    would then find their losses among its own.

    Raises:
        RuntimeError: this version of Keras keeps them elsewhere.
    """
    for layer in all_layers(model):
        if not isinstance(getattr(layer, "_losses", None), list):
            raise RuntimeError(
                f"keras {keras.__version__}: Layer._losses is gone; losses "
                "of replicas would be mixed up."
            )
        object.__setattr__(layer, "_losses", ThreadList())


def added_losses(model: keras.Model) -> list[tuple[str, tf.Tensor]]:
    """What layers passed to `add_loss` in the last call, with their names.

    It includes activity regularizers, but not weight regularizers.
    """
    return [
        (layer.name, value)
        for layer in all_layers(model)
        for value in layer._get_own_losses()
    ]


@contextlib.contextmanager
def noting_added_losses(
    model: keras.Model,
) -> Iterator[list[tuple[str, tf.Tensor]]]:
    """Notes what layers pass to `add_loss`, with their names, for a trial."""
    noted: list[tuple[str, tf.Tensor]] = []
    layers = list(all_layers(model))

    def note_for(layer: keras.Layer) -> Callable[[Any], None]:
        return lambda loss: noted.extend(
            (layer.name, value) for value in keras.tree.flatten(loss)
        )

    for layer in layers:
        # Not through Keras' own __setattr__, which would track functions.
        object.__setattr__(layer, "add_loss", note_for(layer))
    try:
        yield noted
    finally:
        for layer in layers:
            object.__delattr__(layer, "add_loss")


def replace_moments(
    layer: keras.layers.BatchNormalization,
    moments: Callable[..., Any],
    masked_moments: Callable[..., Any],
) -> None:
    """Replaces how a synchronized layer takes its statistics.

    Args:
        layer: it may get a mask or not.
        moments: a function of inputs and the axes to reduce.
        masked_moments: a function of inputs, mask and the axes to reduce.

    Raises:
        RuntimeError: this version of Keras takes them elsewhere.
    """
    own = getattr(layer, "_moments", None)
    if not callable(own) or not hasattr(layer, "_reduction_axes"):
        raise RuntimeError(
            f"keras {keras.__version__}: BatchNormalization._moments is gone; "
            "its statistics would depend on the number of replicas."
        )

    def take(inputs: Any, mask: Any) -> Any:
        # A trial runs outside of replicas, and Keras calls a model once to
        # build it: neither can reduce.
        on_replica = tf.distribute.get_replica_context() is not None
        if not layer.synchronized or not on_replica:
            return own(inputs, mask)
        if mask is None:
            return moments(inputs, layer._reduction_axes)
        return masked_moments(inputs, mask, layer._reduction_axes)

    # Not through Keras' own __setattr__, which would track the function.
    object.__setattr__(layer, "_moments", take)


@contextlib.contextmanager
def without_batch_statistics(model: keras.Model) -> Iterator[None]:
    """Lets BatchNormalization use its moving statistics while training."""
    norm = keras.layers.BatchNormalization
    layers = [one for one in all_layers(model) if isinstance(one, norm)]
    # What `replace_moments` may have put there, to be put back.
    before = [vars(layer).get("_moments") for layer in layers]

    def moments_of(layer: Any) -> Callable[..., Any]:
        def take(inputs: Any, mask: Any) -> Any:
            kept = layer.moving_mean, layer.moving_variance
            return tuple(keras.ops.cast(one, inputs.dtype) for one in kept)

        return take

    for layer in layers:
        object.__setattr__(layer, "_moments", moments_of(layer))
    try:
        yield
    finally:
        for layer, own in zip(layers, before, strict=True):
            if own is None:
                object.__delattr__(layer, "_moments")
            else:
                object.__setattr__(layer, "_moments", own)


def seed_generators(
    model: keras.Model,
) -> list[tuple[str, keras.random.SeedGenerator]]:
    """The seed generators of a model, with their layers' names, in order.

    Raises:
        RuntimeError: this version of Keras keeps them elsewhere.
    """
    found: dict[int, tuple[str, keras.random.SeedGenerator]] = {}
    for layer in all_layers(model):
        if not hasattr(layer, "_seed_generators"):
            raise RuntimeError(
                f"keras {keras.__version__}: Layer._seed_generators is gone; "
                "replicas would draw equal random numbers."
            )
        for generator in layer._seed_generators:
            # Layers may share one: each is numbered once, in the order of
            # layers.
            found[id(generator)] = layer.name, generator
    return list(found.values())


def seed_dtype() -> str:
    """What Keras' random operations take as a seed."""
    return str(keras.src.backend.random_seed_dtype())


def draw_unseeded_from(
    stand_in: Callable[[], keras.random.SeedGenerator | None],
) -> None:
    """Lets `keras.random` draw from another generator where no seed is given.

    Otherwise such draws come from one generator of the process, whose state no
    checkpoint holds.

    Args:
        stand_in: returns an object with the `next` of a seed generator, or
            `None` to leave it to Keras.

    Raises:
        RuntimeError: this version of Keras draws elsewhere.
    """
    try:
        from keras.src.random import seed_generator

        of_keras = seed_generator.global_seed_generator
    except (ImportError, AttributeError):
        raise RuntimeError(
            f"keras {keras.__version__}: global_seed_generator is gone; what "
            "keras.random draws without a seed would not be resumed."
        ) from None
    seed_generator.global_seed_generator = lambda: stand_in() or of_keras()


def layer_metrics(model: keras.Model) -> list[tuple[keras.Layer, keras.Metric]]:
    """The metrics that layers keep, each once, with the layer that does.

    Raises:
        RuntimeError: this version of Keras keeps them elsewhere.
    """
    found: dict[int, tuple[keras.Layer, keras.Metric]] = {}
    for layer in all_layers(model):
        if not hasattr(layer, "_metrics"):
            raise RuntimeError(
                f"keras {keras.__version__}: Layer._metrics is gone; metrics "
                "in layers would be neither logged nor saved."
            )
        # A metric may be shared by layers: the first one is named.
        for metric in layer._metrics:
            found.setdefault(id(metric), (layer, metric))
    return list(found.values())


@contextlib.contextmanager
def fresh_names() -> Iterator[None]:
    """Lets Keras number names from the start, whatever was made before.

    Raises:
        RuntimeError: this version of Keras counts elsewhere.
    """
    get, put = _global_state(
        "names of metrics would depend on what was made before"
    )
    before = get("object_name_uids")
    put("object_name_uids", collections.defaultdict(int))
    try:
        yield
    finally:
        put("object_name_uids", before)


def call_state() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Remembers what Keras knows of the call of a layer that is under way.

    Returns:
        A context in which it knows the same, for a call that is repeated
        later: whether the model trains, and the dtype that variables are cast
        to.

    Raises:
        RuntimeError: this version of Keras keeps it elsewhere.
    """
    get, put = _global_state("layers could not be recomputed")
    names = "current_call_ctx", "autocast_scope"
    here = {name: get(name) for name in names}

    @contextlib.contextmanager
    def again() -> Iterator[None]:
        before = {name: get(name) for name in names}
        for name, value in here.items():
            put(name, value)
        try:
            yield
        finally:
            for name, value in before.items():
                put(name, value)

    return again


def _global_state(
    otherwise: str,
) -> tuple[Callable[..., Any], Callable[..., None]]:
    """Keras' functions that get and set what is global in a thread.

    Args:
        otherwise: what would happen without them.
    """
    try:
        from keras.src.backend.common import global_state

        return (
            global_state.get_global_attribute,
            global_state.set_global_attribute,
        )
    except (ImportError, AttributeError):
        raise RuntimeError(
            f"keras {keras.__version__}: global_state is gone; {otherwise}."
        ) from None


def compile_arguments(model: keras.Model) -> dict[str, Any]:
    """What `compile` was called with; empty if it was not."""
    config = getattr(model, "_compile_config", None)
    return dict(getattr(config, "config", {})) if model.compiled else {}


def lambda_options(layer: keras.layers.Lambda) -> dict[str, Any]:
    """What makes a `Lambda` again, with its functions as they are.

    `get_config` has their code instead, which Keras refuses to read, and which
    has lost the names that it uses.

    Raises:
        RuntimeError: this version of Keras keeps them elsewhere.
    """
    if not hasattr(layer, "_output_shape"):
        raise RuntimeError(
            f"keras {keras.__version__}: Lambda._output_shape is gone; a copy "
            "of the layer would lose it."
        )
    return {
        **keras.Layer.get_config(layer),
        "function": layer.function,
        "output_shape": layer._output_shape,
        "mask": layer.mask,
        "arguments": layer.arguments,
    }

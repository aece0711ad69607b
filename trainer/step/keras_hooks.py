"""Every private name of Keras that this framework relies on.

Each function checks that the name is there, so that an upgrade of Keras that
moves one fails at start-up with a sentence, not with a wrong number.
"""

import collections
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf


def native(variable: Any) -> tf.Variable:
    """The `tf.Variable` inside a Keras variable."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def keras_mask(tensor: Any) -> tf.Tensor | None:
    """The mask that masking layers attached to an output, if any."""
    return getattr(tensor, "_keras_mask", None)


def set_keras_mask(tensor: tf.Tensor, mask: tf.Tensor) -> None:
    """Attaches a mask to a tensor, as masking layers do."""
    tensor._keras_mask = mask


def count_steps_natively(optimizer: keras.optimizers.Optimizer) -> None:
    """Makes `optimizer.iterations` count in one operation.

    Keras reads the counter, adds one and writes it: of two parameter-server
    workers that do so at once, one update is lost.

    Raises:
        RuntimeError: this version of Keras counts elsewhere.
    """
    counter = getattr(optimizer, "_iterations", None)
    if not isinstance(counter, keras.Variable):
        raise RuntimeError(
            f"keras {keras.__version__}: {type(optimizer).__name__}"
            "._iterations is gone; concurrent workers would lose counts."
        )
    object.__setattr__(
        counter,
        "assign_add",
        lambda value: native(counter).assign_add(tf.cast(value, counter.dtype)),
    )


def skip_own_reduction(optimizer: keras.optimizers.Optimizer) -> None:
    """Makes `optimizer.apply` take gradients that are already reduced.

    Keras clips first and reduces across replicas afterwards; the step here
    reduces first, so that clipping sees the whole global batch's gradient.

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
    object.__setattr__(optimizer, hook, lambda grads_and_vars: grads_and_vars)


def symbolic_outputs(model: keras.Model) -> Any:
    """What a model returns, before any batch; `None` where that is open."""
    try:
        return model.output
    except (AttributeError, ValueError):
        return None


def all_layers(model: keras.Model) -> Iterator[keras.Layer]:
    """The model and every layer below it, each once."""
    return iter(model._flatten_layers())


class _ListOfThread(threading.local):
    """A list of which each thread sees its own."""

    def __init__(self) -> None:
        self._items: list[Any] = []

    def __getitem__(self, index: Any) -> Any:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def append(self, item: Any) -> None:
        self._items.append(item)

    def extend(self, items: Any) -> None:
        self._items.extend(items)

    def clear(self) -> None:
        self._items.clear()


def separate_added_losses(model: keras.Model) -> None:
    """Keeps apart what replicas, which trace in threads, pass to `add_loss`.

    A layer has one list, and a replica that waits for others in a reduction
    would find their losses among its own.

    Raises:
        RuntimeError: this version of Keras keeps them elsewhere.
    """
    for layer in all_layers(model):
        if not isinstance(getattr(layer, "_losses", None), list):
            raise RuntimeError(
                f"keras {keras.__version__}: Layer._losses is gone; losses "
                "of replicas would be mixed up."
            )
        object.__setattr__(layer, "_losses", _ListOfThread())


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
            found[id(generator)] = layer.name, generator
    return list(found.values())


def seed_dtype() -> str:
    """What Keras' random operations take as a seed."""
    return str(keras.src.backend.random_seed_dtype())


def draw_unseeded_from(
    stand_in: Callable[[], keras.random.SeedGenerator | None],
) -> None:
    """Lets `keras.random` draw from something else where no seed is given.

    Otherwise all that has none draws from one generator of the process, whose
    state no checkpoint holds.

    Args:
        stand_in: returns what has a `next` like a seed generator's; `None`
            leaves it to Keras.

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
        for metric in layer._metrics:
            found.setdefault(id(metric), (layer, metric))
    return list(found.values())


@contextlib.contextmanager
def fresh_names() -> Iterator[None]:
    """Lets Keras number names from the beginning, whatever was made before.

    Raises:
        RuntimeError: this version of Keras counts elsewhere.
    """
    try:
        from keras.src.backend.common import global_state

        get, put = (
            global_state.get_global_attribute,
            global_state.set_global_attribute,
        )
    except (ImportError, AttributeError):
        raise RuntimeError(
            f"keras {keras.__version__}: the counters of automatic names are "
            "gone; names of metrics would depend on what was made before."
        ) from None
    before = get("object_name_uids")
    put("object_name_uids", collections.defaultdict(int))
    try:
        yield
    finally:
        put("object_name_uids", before)

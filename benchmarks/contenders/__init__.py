"""One module for each contender, and the list of them.

A module has `run(task, orders)`: it builds its model, and trains `task.steps`
steps after each `orders.wait()`, for as long as that returns. All of them train
the same layers with Adam, in float32, on batches of 64 from arrays of the same
size that are shuffled anew in each epoch, and read their mean loss and accuracy
every 100 steps.
"""

from typing import NamedTuple

_TENSORFLOW = ("tensorflow", "keras")


class Entry(NamedTuple):
    """A contender.

    Attributes:
        title: as in the table.
        module: in this package.
        packages: what it needs, by the names they are imported as.
    """

    title: str
    module: str
    packages: tuple[str, ...] = _TENSORFLOW


_BARE, _FIT = "bare loop", "Keras fit, 100 steps per execution"
# By name, with a form after a colon; the Trainer's are those that its
# `jit_compile` takes.
CONTENDERS = {
    "trainer": Entry("Trainer", "ours"),
    "bare": Entry(f"{_BARE}, rows are shuffled and batched by tf.data", "bare"),
    "bare:gather": Entry(f"{_BARE}, a batch is gathered at once", "bare"),
    "bare:stacked": Entry(
        f"{_BARE}, XLA over 50 batches, gathered at once", "bare"
    ),
    "fit": Entry(f"{_FIT}, without XLA", "keras_fit"),
    "fit:xla": Entry(f"{_FIT}, with XLA", "keras_fit"),
    "keras_jax": Entry("Keras fit on JAX", "keras_fit", ("jax", "keras")),
    "pytorch": Entry("PyTorch, eager", "pytorch", ("torch",)),
    "pytorch:compiled": Entry(
        "PyTorch, the model under torch.compile", "pytorch", ("torch",)
    ),
    "distribute": Entry("bare tf.distribute loop", "distribute"),
}
_ON_DEMAND = ("pytorch:compiled", "distribute")
DEFAULT = tuple(name for name in CONTENDERS if name not in _ON_DEMAND)


def find(name: str) -> Entry:
    """The contender of `NAME` or `NAME:FORM`.

    Raises:
        SystemExit: there is none.
    """
    kind, _, form = name.partition(":")
    if kind == "trainer" and form:
        return Entry(f"Trainer, jit_compile={form}", "ours")
    if kind == "distribute" and form.isdigit():
        return Entry(f"bare tf.distribute loop, {form} a closure", kind)
    if name not in CONTENDERS:
        raise SystemExit(
            f"There is no contender {name!r}. Valid: {', '.join(CONTENDERS)}."
        )
    return CONTENDERS[name]

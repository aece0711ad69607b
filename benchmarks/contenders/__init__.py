"""One module for each contender, and the list of them.

A module has `run(task, orders)`: it builds its model, and trains `task.steps`
steps after each `orders.wait()`, for as long as that returns. All of them train
the same layers with Adam, in float32, on batches of 64 from arrays of the same
size that are shuffled anew in each epoch, and read their mean loss and accuracy
every 100 steps.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Entry:
    """A contender.

    Attributes:
        title: as in the table.
        module: in this package.
        packages: what it needs, by the names they are imported as.
        forms: by what is behind the colon, what that means; `None` stands for
            whatever the Trainer's `jit_compile` takes.
    """

    title: str
    module: str
    packages: tuple[str, ...]
    forms: dict[str, str] | None = dataclasses.field(
        default_factory=lambda: {"": ""}
    )


_TENSORFLOW = ("tensorflow", "keras")
CONTENDERS = {
    "trainer": Entry("Trainer", "ours", _TENSORFLOW, None),
    "bare": Entry(
        "bare loop",
        "bare",
        _TENSORFLOW,
        {
            "": "rows are shuffled and batched by tf.data",
            "gather": "a batch is gathered at once",
            "stacked": "XLA over 50 batches, gathered at once",
        },
    ),
    "fit": Entry(
        "Keras fit",
        "keras_fit",
        _TENSORFLOW,
        {
            "": "100 steps per execution, without XLA",
            "xla": "100 steps per execution, with XLA",
        },
    ),
    "keras_jax": Entry("Keras fit on JAX", "keras_fit", ("jax", "keras")),
    "pytorch": Entry(
        "PyTorch",
        "pytorch",
        ("torch",),
        {
            "": "eager",
            "compiled": "the model under torch.compile",
        },
    ),
    "distribute": Entry("bare tf.distribute loop", "distribute", _TENSORFLOW),
}
DEFAULT = (
    "trainer",
    "bare",
    "bare:gather",
    "bare:stacked",
    "fit",
    "fit:xla",
    "keras_jax",
    "pytorch",
)


def find(name: str) -> Entry:
    """The contender of `NAME` or `NAME:FORM`.

    Raises:
        SystemExit: there is none.
    """
    kind, _, form = name.partition(":")
    if kind not in CONTENDERS:
        raise SystemExit(
            f"There is no contender {kind!r}. Valid: {', '.join(CONTENDERS)}."
        )
    entry = CONTENDERS[kind]
    if entry.forms is not None and form not in entry.forms:
        valid = ", ".join(f"{kind}:{one}".rstrip(":") for one in entry.forms)
        raise SystemExit(f"There is no contender {name!r}. Valid: {valid}.")
    return entry


def title(name: str) -> str:
    """A contender and its form, as in the table."""
    entry, form = find(name), name.partition(":")[2]
    if entry.forms is None:
        return f"{entry.title}, jit_compile={form}" if form else entry.title
    return ", ".join(filter(None, (entry.title, entry.forms[form])))

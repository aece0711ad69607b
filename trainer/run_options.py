"""`RunOptions`: every option of a run, declared once.

Flags, `run.*` in a gin file, the keyword arguments of `Trainer.train`, the
documentation and `--mode=print_config` are made from this list. Code that needs
an option reads it from the object. Nothing here imports TensorFlow or Keras, so
that mistakes in flags show at once.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import (
    Annotated,
    Any,
    Literal,
    TypeAlias,
    TypeVar,
    get_args,
    get_type_hints,
)

from annotated_types import Ge, Le, MinLen, Predicate
from typing_extensions import Doc

from trainer.errors import UserError
from trainer.values.annotations import (
    Direction,
    JitCompile,
    Job,
    Names,
    Natural,
    NotNegative,
    Path,
    Positive,
    Precision,
    Seconds,
    Seed,
    Text,
    Verbosity,
)
from trainer.values.periods import Length, PeriodLike, Time

Mode: TypeAlias = Literal[
    "train", "train_and_eval", "eval", "continuous_eval", "export", "check"
]
TRAINING_MODES = ("train", "train_and_eval")
# Modes that read a run of another process.
READING_MODES = ("eval", "continuous_eval", "export")

F = TypeVar("F", bound=Callable[..., Any])
EvalEvery: TypeAlias = Annotated[
    PeriodLike | Annotated[dict[Text, PeriodLike | None], MinLen(1)],
    Doc(
        "a period, such as 100, '2 epochs' or '10m', or a dict of these "
        "by split"
    ),
]


def _are_callbacks(value: Any) -> bool:
    # Not at the top: it takes seconds.
    import keras

    return isinstance(value, list | tuple) and all(
        isinstance(one, keras.callbacks.Callback) for one in value
    )


def _makes_trainer(value: Any) -> bool:
    # What a function makes is only known when it is called.
    return not inspect.isclass(value) or hasattr(value, "train_and_evaluate")


_Callbacks: TypeAlias = Annotated[
    Any, Predicate(_are_callbacks), Doc("a list of callbacks")
]
_MakeTrainer: TypeAlias = Annotated[
    Callable[..., Any],
    Predicate(_makes_trainer),
    Doc("Trainer, or a subclass of it"),
]


@dataclasses.dataclass(frozen=True)
class Facts:
    """The facts about an option, besides its name, type and default.

    Attributes:
        about: one sentence, for `--help`.
        group: under which `--help` lists its flag; `""` for no flag.
        modes: the modes in which it has a meaning; others reject it.
        in_python: whether `Trainer.train` and `train_and_evaluate` take it:
            `"train"`, `"evaluate"` for the latter only, or `""`.
        in_gin: whether a gin file may set it.
        binds: the parameter that its flag sets, if it has another name.
    """

    about: str
    group: str = ""
    modes: tuple[str, ...] = get_args(Mode)
    in_python: Literal["", "train", "evaluate"] = ""
    in_gin: bool = True
    binds: str = ""


def option(default: Any, about: str, **facts: Any) -> Any:
    """Declares an option in a dataclass; see `Facts`."""
    return dataclasses.field(
        default=default, metadata={"facts": Facts(about, **facts)}
    )


@functools.cache
def declared_in(owner: type) -> dict[str, tuple[Any, Facts]]:
    """Returns annotations and facts of the options that a class declares."""
    types = get_type_hints(owner, include_extras=True)
    return {
        field.name: (types[field.name], field.metadata["facts"])
        for field in dataclasses.fields(owner)
        if "facts" in field.metadata
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of one run."""

    def check(self, mode: str) -> None:
        """Refuses what has no meaning in a mode, or without another option.

        Raises:
            UserError: an option is set that has none.
        """
        for name, (_, facts) in declared_in(RunOptions).items():
            value = getattr(self, name)
            if value != getattr(RunOptions, name) and mode not in facts.modes:
                raise UserError(
                    f"{name} = {value!r} has no meaning with mode = {mode!r}. "
                    f"Valid with it: {', '.join(facts.modes)}."
                )
        if self.init_only is not None and self.init_from is None:
            raise UserError(
                f"run.init_only = {self.init_only!r} needs a run to load from: "
                "set --init_from."
            )

    trainer: _MakeTrainer | None = option(
        None, "The Trainer's class, such as your subclass; None is Trainer."
    )
    train_steps: Length = option(
        1000,
        "The step at which training ends, counted from the run's beginning; "
        "or '3 epochs'.",
        group="Training",
    )
    max_time: Time | None = option(
        None,
        "Ends training earlier, once all attempts have trained this long: "
        "30m, 8h.",
        group="Training",
        in_python="train",
    )
    callbacks: _Callbacks = option(
        (), "The callbacks: [@Progress(), @Checkpoint()]."
    )
    log_every: PeriodLike = option(
        100, "How often training values are logged.", in_python="train"
    )
    steps_per_loop: Positive | None = option(
        None,
        "The most steps in one graph call; callbacks act between the calls. "
        "None is 100, or 1 if a Keras callback acts on batches.",
        group="Training",
        in_python="train",
    )
    loop_seconds: NotNegative = option(
        15.0, "How long a graph call may take, in seconds.", in_python="train"
    )
    eval_every: EvalEvery | None = option(
        None,
        "How often to evaluate. None is after each epoch, or only at the end "
        "if an epoch's length is unknown. A dict has a period for each set.",
        in_python="evaluate",
    )
    eval_steps: Positive | None = option(
        None, "Batches in an evaluation; None is all.", in_python="evaluate"
    )
    eval_split: Text | None = option(
        None,
        "The split that --mode=eval measures, such as 'test'; None is the sets "
        "of eval_every.",
    )
    strategy: Text = option(
        "auto",
        "A strategy plugin's name; 'auto' is the one that fits best. "
        "--strategy=help lists those installed.",
        group="Devices",
    )
    devices: Names | None = option(
        None, "Devices to use, such as GPU:0,GPU:1.", group="Devices"
    )
    virtual_devices: Annotated[int, Ge(1), Le(128)] | None = option(
        None,
        "Split the CPU into this many devices, to try a strategy.",
        group="Devices",
    )
    tpu: Text | None = option(
        None, "Name or address of a Cloud TPU.", group="Devices"
    )
    tpu_topology: Text | None = option(
        None,
        "With --mode=check: compile for a TPU slice such as v5e:2x4, without a "
        "TPU.",
        group="Devices",
        modes=("check",),
    )
    deterministic: bool = option(
        False,
        "Make every TensorFlow operation reproducible; may be slower.",
        group="Devices",
    )
    memory_growth: bool = option(
        False,
        "Allocate GPU memory as needed instead of all at once, so that other "
        "processes can use it, too.",
    )
    tf32: bool = option(
        True,
        "Let GPUs since Ampere multiply float32 matrices with 10 bits of "
        "mantissa, which is quicker; TensorFlow's default.",
    )
    worker_hosts: Names | None = option(
        None,
        "Every worker's host:port. Not needed with TF_CONFIG, Slurm or "
        "Kubernetes.",
        group="Clusters",
    )
    ps_hosts: Names | None = option(
        None,
        "Every parameter server's host:port; the first worker is then the "
        "chief.",
        group="Clusters",
    )
    task_type: Job | None = option(
        None, "The job of this process.", group="Clusters"
    )
    task_index: Natural | None = option(
        None,
        "The index of this process within its job, from 0.",
        group="Clusters",
    )
    init_from: Text | None = option(
        None,
        "The run or file whose weights a new run starts with.",
        group="What to run",
    )
    init_only: Text | None = option(
        None,
        "Which variables to load: a regular expression that matches whole "
        "paths; None is all.",
    )
    eval_timeout: Time = option(
        "1h", "How long an evaluator waits for a new checkpoint."
    )
    eval_poll_seconds: Seconds = option(
        10.0, "How often an evaluator looks for one, in seconds."
    )
    best_monitor: Text = option(
        "val_loss",
        "The value by which an evaluator chooses the checkpoint to keep in "
        "best/.",
    )
    best_mode: Direction = option(
        "auto", "'min', 'max', or 'auto' to decide by the name."
    )
    verbose: Verbosity = option(
        "auto",
        "0 shows no progress, 2 one line for each epoch; 'auto' and 1 show a "
        "bar on a terminal and in a notebook, and lines elsewhere.",
        in_python="train",
        in_gin=False,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainerFlags:
    """The flags that set a parameter of the Trainer."""

    batch_size: Positive = option(
        None, "Examples in a global batch, over all replicas.", group="Training"
    )
    learning_rate: NotNegative = option(
        None, "Replaces the optimizer's learning rate.", group="Training"
    )
    seed: Seed = option(
        0, "Seed for weights, shuffling and dropout.", group="Training"
    )
    data_dir: Path = option(None, "Where the data is.", group="Training")
    mixed_precision: Precision = option(
        None,
        "Data type policy of the model.",
        group="Devices",
        binds="precision",
    )
    jit_compile: JitCompile = option(
        "auto",
        "Compile the step with XLA, or in the form that is named.",
        group="Devices",
    )
    run_eagerly: bool = option(
        False,
        "Run steps as Python, so that a debugger can stop in them.",
        group="Debugging",
    )


def with_keywords(
    taken: Mapping[str, tuple[Any, Any]], *, first: Collection[str] = ()
) -> Callable[[F], F]:
    """Gives a function keyword arguments that are declared elsewhere.

    It has to take them as its `**` argument, in whose place the signature
    lists them.

    Args:
        taken: annotation and default of each.
        first: the names of those that are listed before its own keywords.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        *given, _ = signature.parameters.values()
        kind = inspect.Parameter.KEYWORD_ONLY
        added = [
            inspect.Parameter(name, kind, default=default, annotation=hint)
            for name, (hint, default) in taken.items()
        ]
        listed = sorted(
            [*given, *added], key=lambda p: (p.kind, p.name not in first)
        )
        function.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=listed
        )
        hints = {name: hint for name, (hint, _) in taken.items()}
        function.__annotations__.update(hints)
        return function

    return decorate


def taking(fits: Callable[[Facts], bool]) -> Callable[[F], F]:
    """Gives a function keyword arguments for some options of a run.

    It has to have `**options`, in whose place the signature and the docstring
    list them.

    Args:
        fits: whether it takes an option.
    """

    def decorate(function: F) -> F:
        chosen = {
            name: (hint, facts)
            for name, (hint, facts) in declared_in(RunOptions).items()
            if fits(facts)
        }
        listed = [f"    {n}: {facts.about}" for n, (_, facts) in chosen.items()]
        doc = inspect.cleandoc(function.__doc__ or "")
        function.__doc__ = "\n".join([doc, "", "Options:", *listed])
        taken = {
            name: (hint, getattr(RunOptions, name))
            for name, (hint, _) in chosen.items()
        }
        return with_keywords(taken)(function)

    return decorate

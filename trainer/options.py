"""`RunOptions`: every option of a run, declared once.

Flags, `run.*` in a gin file, the keyword arguments of `Trainer.train`, the
documentation and `--mode=print_config` are made from this list; where an option
acts, it is read from the object. Nothing here imports TensorFlow or Keras, so
that mistakes in flags show at once.
"""

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_type_hints

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
from trainer.values.words import Suggest

TRAINING_MODES = ("train", "train_and_eval")
# Modes that read a run of another process.
READING_MODES = ("eval", "continuous_eval", "export")
MODES = (*TRAINING_MODES, *READING_MODES, "check")

F = TypeVar("F", bound=Callable[..., Any])
EvalEvery: TypeAlias = Annotated[
    PeriodLike | Annotated[dict[Text, PeriodLike | None], MinLen(1)],
    Doc(
        "a period, such as 100, '2 epochs', '10m' or '5%', or a dict of these "
        "by split"
    ),
]


def _is_range(value: str) -> bool:
    match = re.fullmatch(r"(\d{1,18}):(\d{1,18})", value)
    return match is not None and int(match[1]) < int(match[2])


def one_of(*names: str) -> Any:
    """Returns the annotation of one of some names."""
    return Annotated[
        str,
        Predicate(lambda name: name in names),
        Suggest(lambda: names),
        Doc(f"one of {', '.join(names)}"),
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
_Steps: TypeAlias = Annotated[
    str,
    Predicate(_is_range),
    Doc("two numbers of steps, such as '10:20', the second one greater"),
]


@dataclasses.dataclass(frozen=True)
class Facts:
    """What is known of an option beside its name, type and default.

    Attributes:
        about: one sentence.
        group: under which `--help` lists its flag; `""` for no flag.
        modes: in which it has a meaning; in others it is refused.
        in_python: whether `Trainer.train` and `train_and_evaluate` take it:
            `"train"`, `"evaluate"` for the latter only, or `""`.
        in_gin: whether a gin file may set it.
    """

    about: str
    group: str = ""
    modes: tuple[str, ...] = MODES
    in_python: Literal["", "train", "evaluate"] = ""
    in_gin: bool = True


def _option(default: Any, about: str, **facts: Any) -> Any:
    return dataclasses.field(
        default=default, metadata={"facts": Facts(about, **facts)}
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of one run; `facts_of` says what each of them means."""

    def check(self, mode: str) -> None:
        """Refuses what has no meaning in a mode, or without another option.

        Raises:
            UserError: an option is set that has none.
        """
        for field in dataclasses.fields(self):
            value, modes = getattr(self, field.name), facts_of(field.name).modes
            if value != field.default and mode not in modes:
                raise UserError(
                    f"{field.name} = {value!r} has no meaning with mode = "
                    f"{mode!r}. Valid with it: {', '.join(modes)}."
                )
        if self.init_only is not None and self.init_from is None:
            raise UserError(
                f"run.init_only = {self.init_only!r} needs a run to load from: "
                "set --init_from."
            )

    trainer: _MakeTrainer | None = _option(
        None, "The Trainer's class, such as your subclass; None is Trainer."
    )
    train_steps: Length = _option(
        1000,
        "The step at which training ends, counted from the run's beginning; "
        "or '3 epochs'.",
        group="Training",
    )
    max_time: Time | None = _option(
        None,
        "Ends training earlier, once all attempts have trained this long: "
        "30m, 8h.",
        group="Training",
        in_python="train",
    )
    callbacks: _Callbacks = _option(
        (), "The callbacks: [@Progress(), @Checkpoint()]."
    )
    log_every: PeriodLike = _option(
        100, "The period of training logs.", in_python="train"
    )
    steps_per_loop: Positive = _option(
        100,
        "The most steps in one graph call, at whose ends callbacks act.",
        group="Training",
        in_python="train",
    )
    loop_seconds: NotNegative = _option(
        15.0, "How long a graph call may take, in seconds.", in_python="train"
    )
    eval_every: EvalEvery | None = _option(
        None,
        "The period of evaluations; None is each epoch, or only the end if an "
        "epoch's length is unknown; a dict has the period of each set.",
        in_python="evaluate",
    )
    eval_steps: Positive | None = _option(
        None, "Batches in an evaluation; None is all.", in_python="evaluate"
    )
    eval_split: Text | None = _option(
        None,
        "The split that --mode=eval measures, such as 'test'; None is the sets "
        "of eval_every.",
    )
    strategy: Text = _option(
        "auto",
        "A strategy plugin's name; 'auto' is the one that fits best. "
        "--strategy=help lists those installed.",
        group="Devices",
    )
    devices: Names | None = _option(
        None, "Devices to use, such as GPU:0,GPU:1.", group="Devices"
    )
    virtual_devices: Annotated[int, Ge(1), Le(128)] | None = _option(
        None,
        "Split the CPU into this many devices, to try a strategy.",
        group="Devices",
    )
    tpu: Text | None = _option(
        None, "Name or address of a Cloud TPU.", group="Devices"
    )
    tpu_topology: Text | None = _option(
        None,
        "With --mode=check: compile for a TPU slice such as v5e:2x4, without a "
        "TPU.",
        group="Devices",
        modes=("check",),
    )
    deterministic: bool = _option(
        False,
        "Make every TensorFlow operation reproducible; may be slower.",
        group="Devices",
    )
    worker_hosts: Names | None = _option(
        None,
        "Every worker's host:port. Not needed with TF_CONFIG, Slurm or "
        "Kubernetes.",
        group="Clusters",
    )
    ps_hosts: Names | None = _option(
        None,
        "Every parameter server's host:port; the first worker is then the "
        "chief.",
        group="Clusters",
    )
    task_type: Job | None = _option(
        None, "The job of this process.", group="Clusters"
    )
    task_index: Natural | None = _option(
        None,
        "The index of this process within its job, from 0.",
        group="Clusters",
    )
    init_from: Text | None = _option(
        None,
        "The run or file whose weights a new run starts with.",
        group="What to run",
    )
    init_only: Text | None = _option(
        None,
        "Which variables to load: a regular expression that matches whole "
        "paths; None is all.",
    )
    profile: _Steps | None = _option(
        None,
        "The steps to trace for TensorBoard's profile tab, such as 10:20. A "
        "file PROFILE in the run directory traces a run that goes on.",
        group="Debugging",
        modes=TRAINING_MODES,
        in_python="train",
    )
    eval_timeout: Time = _option(
        "1h", "How long an evaluator waits for a new checkpoint."
    )
    eval_poll_seconds: Seconds = _option(
        10.0, "How often an evaluator looks for one, in seconds."
    )
    best_monitor: Text = _option(
        "val_loss",
        "The value by which an evaluator chooses the checkpoint to keep in "
        "best/.",
    )
    best_mode: Direction = _option(
        "auto", "'min', 'max', or 'auto' to decide by the name."
    )
    verbose: Verbosity = _option(
        "auto",
        "0 shows no progress, 2 one line for each epoch; 'auto' and 1 show a "
        "bar on a terminal and in a notebook, and lines elsewhere.",
        in_python="train",
        in_gin=False,
    )


def facts_of(name: str) -> Facts:
    """Returns what is known of an option."""
    facts: Facts = RunOptions.__dataclass_fields__[name].metadata["facts"]
    return facts


@functools.cache
def types() -> dict[str, Any]:
    """Returns the annotations of all options, by name and in order."""
    return get_type_hints(RunOptions, include_extras=True)


# The options that `Trainer.train`, and `train_and_evaluate`, take.
IN_PYTHON = {
    "train": [n for n in types() if facts_of(n).in_python == "train"],
    "evaluate": [n for n in types() if facts_of(n).in_python],
}


def taking(names: Iterable[str]) -> Callable[[F], F]:
    """Gives a function keyword arguments for some options.

    It has to have `**options`, in whose place the signature and the docstring
    list them.
    """

    def decorate(function: F) -> F:
        chosen = {name: types()[name] for name in names}
        signature = inspect.signature(function)
        *given, _ = signature.parameters.values()
        fields = RunOptions.__dataclass_fields__
        added = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=fields[name].default,
                annotation=kind,
            )
            for name, kind in chosen.items()
        ]
        function.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*given, *added]
        )
        function.__annotations__.update(chosen)
        listed = [f"    {name}: {facts_of(name).about}" for name in chosen]
        doc = inspect.cleandoc(function.__doc__ or "")
        function.__doc__ = "\n".join([doc, "", "Options:", *listed])
        return function

    return decorate


# Flags that set a parameter of the Trainer: its name, type, sentence and group.
TRAINER_FLAGS: dict[str, tuple[str, Any, str, str]] = {
    "batch_size": (
        "batch_size",
        Positive,
        "Examples in a global batch, over all replicas.",
        "Training",
    ),
    "learning_rate": (
        "learning_rate",
        NotNegative,
        "Replaces the optimizer's learning rate.",
        "Training",
    ),
    "seed": (
        "seed",
        Seed,
        "Seed for weights, shuffling and dropout.",
        "Training",
    ),
    "data_dir": ("data_dir", Path, "Where the data is.", "Training"),
    "mixed_precision": (
        "precision",
        Precision,
        "Data type policy of the model.",
        "Devices",
    ),
    "jit_compile": (
        "jit_compile",
        JitCompile,
        "Compile the step with XLA, or in the form that is named.",
        "Devices",
    ),
    "check_numerics": (
        "check_numerics",
        bool,
        "End at the first operation that computes a NaN, and name it.",
        "Debugging",
    ),
    "run_eagerly": (
        "run_eagerly",
        bool,
        "Run steps as Python, so that a debugger stops in them.",
        "Debugging",
    ),
}

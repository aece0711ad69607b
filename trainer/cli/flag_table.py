"""The table of all named flags."""

import dataclasses

MODES = (
    "train",
    "eval",
    "train_and_eval",
    "continuous_eval",
    "export",
    "check",
    "print_config",
)
TRAINING_MODES = ("train", "train_and_eval")
# Modes that read a run of another process.
READING_MODES = ("eval", "continuous_eval", "export")
HELP_FLAGS = {"-h", "-help", "--help", "--helpshort", "--helpfull"}


@dataclasses.dataclass(frozen=True)
class Flag:
    """One flag of the command line.

    Attributes:
        name: without the dashes.
        kind: `"string"`, `"strings"` (repeatable), `"list"` (comma list),
            `"integer"`, `"float"`, `"boolean"` or
            `"choice"`.
        help: one sentence.
        binds: the gin parameter that it sets, if there is one.
        least: the smallest valid number.
        choices: the valid values of a choice; of another kind, words that it
            takes, too.
        unit: what the number counts, where the parameter takes several units.
    """

    name: str
    kind: str
    help: str
    binds: str | None = None
    least: int | None = None
    choices: tuple[str, ...] = ()
    unit: str = ""


GROUPS: dict[str, tuple[Flag, ...]] = {
    "What to run": (
        Flag("gin_file", "strings", "A gin file; repeat for several."),
        Flag(
            "gin_search_path", "list", "More folders to search for gin files."
        ),
        Flag("gin_param", "strings", "A binding such as 'Adam.beta_1=0.8'."),
        Flag(
            "model_dir",
            "string",
            "Where the run lives; resumes if it holds a run. "
            "Default: runs/<experiment>/<time>.",
        ),
        Flag("mode", "choice", "What to do.", choices=MODES),
        Flag(
            "init_from",
            "string",
            "Start from the weights of another run's checkpoint.",
            "run.init_from",
        ),
        Flag(
            "allow_unused_bindings",
            "boolean",
            "Only warn about bindings that nothing uses.",
        ),
    ),
    "Training": (
        Flag(
            "train_steps",
            "integer",
            "Total number of optimizer steps.",
            "run.train_steps",
            1,
        ),
        Flag(
            "epochs",
            "integer",
            "Total number of epochs, in place of --train_steps.",
            "run.train_steps",
            1,
            unit="epochs",
        ),
        Flag(
            "max_time",
            "string",
            "Ends training earlier, once it has taken this long: 30m, 8h.",
            "run.max_time",
        ),
        Flag(
            "batch_size",
            "integer",
            "Examples in a global batch, over all replicas.",
            "Trainer.batch_size",
            1,
        ),
        Flag(
            "steps_per_loop",
            "integer",
            "Steps in one call of the compiled loop. By default 100.",
            "run.steps_per_loop",
            1,
        ),
        Flag(
            "learning_rate",
            "float",
            "Replaces the optimizer's learning rate.",
            "Trainer.learning_rate",
            0,
        ),
        Flag(
            "seed",
            "integer",
            "Seed for weights, shuffling and dropout.",
            "Trainer.seed",
            0,
        ),
        Flag("data_dir", "string", "Where the data is.", "Trainer.data_dir"),
    ),
    "Devices": (
        Flag(
            "strategy",
            "string",
            "auto or a strategy plugin's name; 'help' lists those installed.",
            "run.strategy",
        ),
        Flag("tpu", "string", "Name or address of a Cloud TPU.", "run.tpu"),
        Flag(
            "tpu_topology",
            "string",
            "With --mode=check: compile for a TPU slice such as v5e:2x4, "
            "without a TPU.",
            "run.tpu_topology",
        ),
        Flag(
            "fit_batch",
            "boolean",
            "With --tpu_topology: look for the largest batch that fits.",
            "run.fit_batch",
        ),
        Flag(
            "devices",
            "list",
            "Devices to use, such as GPU:0,GPU:1.",
            "run.devices",
        ),
        Flag(
            "virtual_devices",
            "integer",
            "Split the CPU into this many devices, to try a strategy.",
            "run.virtual_devices",
            1,
        ),
        Flag(
            "mixed_precision",
            "choice",
            "Data type policy of the model.",
            "Trainer.precision",
            choices=("float32", "mixed_bfloat16", "mixed_float16"),
        ),
        Flag(
            "jit_compile",
            "boolean",
            "Compile the step with XLA, or in the form that is named. By "
            "default auto: by what it consists of.",
            "Trainer.jit_compile",
            choices=("auto", "graph", "xla", "xla_stack"),
        ),
        Flag(
            "deterministic",
            "boolean",
            "Bit-identical results from identical runs; may be slower.",
            "run.deterministic",
        ),
    ),
    "Clusters": (
        Flag(
            "worker_hosts",
            "list",
            "Every worker's host:port. Not needed with TF_CONFIG, Slurm or "
            "Kubernetes.",
            "run.worker_hosts",
        ),
        Flag(
            "ps_hosts",
            "list",
            "Every parameter server's host:port; the first worker is then "
            "the chief.",
            "run.ps_hosts",
        ),
        Flag(
            "task_type",
            "choice",
            "The job of this process.",
            "run.task_type",
            choices=("chief", "worker", "ps", "evaluator"),
        ),
        Flag(
            "task_index",
            "integer",
            "The index of this process within its job, from 0.",
            "run.task_index",
            0,
        ),
    ),
    "Debugging": (
        Flag(
            "check_numerics",
            "boolean",
            "End at the first operation that computes a NaN, and name it.",
            "Trainer.check_numerics",
        ),
        Flag(
            "run_eagerly",
            "boolean",
            "Run steps as Python, so that a debugger stops in them.",
            "Trainer.run_eagerly",
        ),
        Flag(
            "profile",
            "string",
            "Trace these steps for TensorBoard's profile tab, such as 10:20.",
            "run.profile",
        ),
    ),
    "Help and messages": (
        Flag(
            "flagfile",
            "string",
            "A file with more flags, one on each line; # begins a comment.",
        ),
        Flag(
            "helpfull",
            "boolean",
            "This text, and the absl flags of the modules that the gin files "
            "import. They can be set, too.",
        ),
        Flag(
            "verbosity",
            "integer",
            "-1 warnings (default), 0 information, 1 everything.",
        ),
    ),
}
FLAGS: dict[str, Flag] = {
    flag.name: flag for group in GROUPS.values() for flag in group
}

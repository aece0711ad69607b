"""Parses the command line.

Nothing here imports TensorFlow, so that `--help` and a mistyped flag are
answered at once.
"""

import contextlib
import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from absl import flags

from trainer.errors import UserError, did_you_mean
from trainer.options import (
    MODES,
    READING_MODES,
    TRAINER_FLAGS,
    facts_of,
    one_of,
    types,
)
from trainer.values.annotations import Positive, Text
from trainer.values.checks import why_not
from trainer.values.words import parts_of

HELP_FLAGS = {"-h", "-help", "--help", "--helpshort", "--helpfull"}
# DOTALL, because a value may span several lines.
_GIN_FLAG = re.compile(r"--?gin\.(?P<name>[^=]*)(?P<value>=.*)?", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Flag:
    """One flag of the command line.

    Attributes:
        name: without the dashes.
        kind: the annotation of its value.
        about: one sentence.
        group: under which `--help` lists it.
        binds: the gin parameter that it sets; `""` for none.
        repeats: whether it may be given several times.
    """

    name: str
    kind: Any
    about: str
    group: str
    binds: str = ""
    repeats: bool = False

    @property
    def is_switch(self) -> bool:
        """Whether it can be given without a value."""
        return bool in parts_of(self.kind)


_FIRST, _LAST = "What to run", "Help and messages"
_OWN = (
    Flag("gin_file", Text, "A gin file; repeat for several.", _FIRST, "", True),
    Flag(
        "gin_search_path",
        Text,
        "More folders to search for gin files: A,B.",
        _FIRST,
    ),
    Flag(
        "gin_param",
        Text,
        "A binding such as 'Adam.beta_1=0.8'.",
        _FIRST,
        "",
        True,
    ),
    Flag(
        "model_dir",
        Text,
        "Where the run lives; resumes if it holds a run. "
        "Default: runs/<experiment>/<time>.",
        _FIRST,
    ),
    Flag(
        "mode",
        one_of(*MODES, "print_config"),
        f"What to do: {', '.join(MODES)} or print_config. Default: "
        "train_and_eval.",
        _FIRST,
    ),
    Flag(
        "allow_unused_bindings",
        bool,
        "Only warn about bindings that nothing uses.",
        _FIRST,
    ),
    Flag(
        "epochs",
        Positive,
        "Total number of epochs, in place of --train_steps.",
        "Training",
        "run.train_steps",
    ),
    Flag(
        "flagfile",
        Text,
        "A file with more flags, one on each line; # begins a comment.",
        _LAST,
    ),
    Flag(
        "helpfull",
        bool,
        "This text, and the absl flags of the modules that the gin files "
        "import. They can be set, too.",
        _LAST,
    ),
    Flag(
        "verbosity",
        int,
        "-1 warnings (default), 0 information, 1 everything.",
        _LAST,
    ),
)
FLAGS: dict[str, Flag] = {flag.name: flag for flag in _OWN}
FLAGS |= {
    name: Flag(name, kind, facts.about, facts.group, f"run.{name}")
    for name, kind in types().items()
    if (facts := facts_of(name)).group
}
FLAGS |= {
    name: Flag(name, kind, about, group, f"Trainer.{parameter}")
    for name, (parameter, kind, about, group) in TRAINER_FLAGS.items()
}


@dataclasses.dataclass(frozen=True)
class Binding:
    """A gin binding from the command line.

    Attributes:
        source: its name in messages, such as `"--batch_size=32"`.
        text: gin text, such as `"trainer.Trainer.batch_size = 32"`.
        parameter: the parameter that a named flag sets, such as
            `"Trainer.batch_size"`; `None` for a gin flag.
    """

    source: str
    text: str
    parameter: str | None = None


@dataclasses.dataclass(frozen=True)
class Request:
    """A parsed command line.

    Attributes:
        mode: one of `MODES`, or `"print_config"`.
        model_dir: where the run lives, if given.
        gin_files: paths, in order.
        gin_search_path: further folders to search for gin files.
        bindings: in order of precedence; the last one wins.
        list_strategies: whether `--strategy=help` was given.
        allow_unused_bindings: whether unused bindings are only a warning.
        full_help: whether `--helpfull` was given.
        verbosity: for `absl.logging.set_verbosity`.
        named: the named flags as given, by name.
        left_over: what only flags of the user's modules can account for.
    """

    mode: str
    model_dir: str | None
    gin_files: tuple[str, ...]
    gin_search_path: tuple[str, ...]
    bindings: tuple[Binding, ...]
    list_strategies: bool
    allow_unused_bindings: bool
    full_help: bool
    verbosity: int
    named: dict[str, str]
    left_over: tuple[str, ...]

    @property
    def is_run(self) -> bool:
        """Whether anything is built, and not only printed."""
        prints = self.full_help or self.list_strategies
        return not prints and self.mode != "print_config"

    @property
    def named_flags(self) -> dict[str, str]:
        """The named flags as given, by the parameter that each one sets."""
        return {
            binding.parameter.split(".")[1]: binding.source
            for binding in self.bindings
            if binding.parameter
        }


def parse(arguments: Sequence[str]) -> Request:
    """Parses the command line.

    Raises:
        UserError: a flag is unknown, or its value is invalid.
    """
    rest, gin_flags = _take_gin_flags(expand(arguments))
    texts, left_over = _parse_named(rest)
    given = {
        name: [_value(FLAGS[name], text) for text in found]
        for name, found in texts.items()
    }
    last: dict[str, Any] = {name: found[-1] for name, found in given.items()}
    mode = last.get("mode", "train_and_eval")
    list_strategies = last.get("strategy") == "help"
    full_help = last.get("helpfull", False)
    # Without a gin file there are no modules that could have more flags.
    if left_over and not ("gin_file" in given and left_over[0][:1] == "-"):
        raise UserError(unknown(left_over[0]))
    if not ("gin_file" in given or list_strategies or full_help):
        raise UserError(
            "There is nothing to run. Give a configuration: --gin_file=FILE "
            "(see --help)."
        )
    # The default is a new directory, in which there is nothing to read.
    if mode in READING_MODES and "model_dir" not in given:
        raise UserError(
            f"--mode={mode} needs --model_dir=DIR, the directory of a run."
        )
    if {"train_steps", "epochs"} <= given.keys():
        raise UserError(
            "--train_steps and --epochs both say how long to train: give one."
        )
    params = [
        Binding(f"--gin_param={text!r}", text)
        for text in given.get("gin_param", ())
    ]
    named = [
        _as_binding(FLAGS[name], value)
        for name, value in last.items()
        if FLAGS[name].binds
    ]
    return Request(
        mode=mode,
        model_dir=last.get("model_dir"),
        gin_files=tuple(given.get("gin_file", ())),
        gin_search_path=tuple(
            filter(None, last.get("gin_search_path", "").split(","))
        ),
        bindings=(*params, *gin_flags, *named),
        list_strategies=list_strategies,
        allow_unused_bindings=last.get("allow_unused_bindings", False),
        full_help=full_help,
        verbosity=last.get("verbosity", -1),
        named={
            name: "\n".join(f"--{name}={text}" for text in found)
            for name, found in texts.items()
        },
        left_over=tuple(left_over),
    )


def expand(arguments: Sequence[str]) -> list[str]:
    """Replaces `--flagfile=FILE` by what is in the file."""
    values = flags.FlagValues()
    try:
        expanded = values.read_flags_from_files(arguments)
    except (flags.Error, OSError) as error:
        cause = error if isinstance(error, OSError) else error.__context__
        name = getattr(cause, "filename", None) or ""
        why = getattr(cause, "strerror", None) or error
        raise UserError(f"--flagfile={name} cannot be read: {why}.") from None
    except UnicodeDecodeError:
        raise UserError("The file of --flagfile is not text.") from None
    for argument in expanded:
        try:
            argument.encode()
        # Python holds what is not UTF-8 as surrogates.
        except UnicodeError:
            raise UserError(
                f"The argument {ascii(argument)} is not valid UTF-8."
            ) from None
    return expanded


def _take_gin_flags(
    arguments: Sequence[str],
) -> tuple[list[str], list[Binding]]:
    """Splits off `--gin.A.b=1`, which absl would refuse as unknown."""
    rest, bindings = [], []
    for argument in arguments:
        match = _GIN_FLAG.fullmatch(argument)
        if match is None:
            rest.append(argument)
            continue
        if not match["name"] or not match["value"]:
            raise UserError(
                f"{argument} needs a name and a value, as in --gin.A.b=1."
            )
        text = f"{match['name']} = {match['value'][1:]}"
        bindings.append(Binding(argument, text))
    return rest, bindings


def _parse_named(
    arguments: Sequence[str],
) -> tuple[dict[str, list[str]], list[str]]:
    """Returns the texts given to `FLAGS`, and the other arguments."""
    # A set of our own: the global FLAGS holds those of every imported library,
    # and would accept and list them.
    values = flags.FlagValues()
    values.set_gnu_getopt()
    for flag in FLAGS.values():
        made = flags.MultiFlag(
            flags.ArgumentParser(), None, flag.name, None, flag.about
        )
        made.boolean = flag.is_switch
        flags.DEFINE_flag(made, values)
    try:
        # absl takes the first element for the program's name.
        left_over = values(["trainer", *arguments], known_only=True)[1:]
    except (flags.Error, ValueError) as error:
        raise UserError(bad_value(error)) from None
    return {
        name: list(map(str, values[name].value))
        for name in FLAGS
        if values[name].present
    }, left_over


def _value(flag: Flag, text: str) -> Any:
    """Returns the value that a text stands for, by the flag's annotation."""
    kinds = set(parts_of(flag.kind))
    words = {"true": True, "false": False}
    value: Any = words.get(text.lower(), text) if bool in kinds else text
    # Where whole numbers are wanted, any other one is refused as such.
    for kind in (int, float) if int in kinds else (float,) * (float in kinds):
        with contextlib.suppress(ValueError):
            value = kind(text)
            break
    if why := why_not(value, flag.kind):
        raise UserError(f"--{flag.name}={text}: {why}")
    return value


def _as_binding(flag: Flag, value: Any) -> Binding:
    shown = value
    if flag.name == "epochs":
        value = f"{value} epochs"
    # The full name, because user code may have another Trainer or run.
    # `repr` is a gin literal for all the types that flags have.
    text = f"trainer.{flag.binds} = {value!r}"
    return Binding(f"--{flag.name}={shown}", text, flag.binds)


def unknown(argument: str, more: Iterable[str] = ()) -> str:
    """Returns the error for an argument that no flag accounts for."""
    if argument.startswith("-"):
        name = argument.lstrip("-").partition("=")[0]
        # absl accepts --noNAME for a switch.
        switches = [f"no{n}" for n, flag in FLAGS.items() if flag.is_switch]
        known = [*FLAGS, *more, "help", *switches]
        hint = did_you_mean(name, known, prefix="--")
        return f"Unknown flag --{name}.{hint} --help lists the flags."
    what = f"Unexpected argument {argument!r}"
    if argument.endswith(".gin"):
        return f"{what}. Did you mean --gin_file={argument}?"
    return f"{what}: write --flag=value, and quote values that contain spaces."


def bad_value(error: Exception, kinds: Mapping[str, str] | None = None) -> str:
    """Returns absl's message on a value in one line.

    Args:
        error: absl's.
        kinds: what is valid, by flag, where that is to be said instead.
    """
    message = str(error).split("\n")[0]
    found = re.match(r"flag --(\w+)=(.*?): ", message, re.DOTALL)
    if found and kinds and found[1] in kinds:
        return f"--{found[1]}={found[2]}: must be {kinds[found[1]]}."
    return message.replace("for flag --", "for --")


# Flags that the user's modules define. They are known only once these modules
# are imported.

# Their absl flags are not for this command line.
_LIBRARIES = ("absl", "keras", "tensorboard", "tensorflow")


def parse_of_modules(request: Request) -> None:
    """Sets the absl flags that the user's modules have defined.

    Call this once these modules are imported.

    Raises:
        UserError: no module has defined such a flag, or it refuses the value.
    """
    values = flags.FlagValues()
    values.set_gnu_getopt()
    for module in _modules():
        for flag in flags.FLAGS.get_flags_for_module(module):
            values[flag.name] = flag
    # A module may have a flag of the same name as one here, such as data_dir.
    shared = [
        line
        for name, text in request.named.items()
        if name in values
        for line in text.split("\n")
    ]
    try:
        left_over = values(["trainer", *shared, *request.left_over])[1:]
        # Only now that all are set: it also checks what must be set.
        flags.FLAGS(["trainer"])
    except flags.UnrecognizedFlagError as error:
        raise UserError(unknown(f"--{error.flagname}", values)) from None
    except (flags.Error, ValueError) as error:
        raise UserError(bad_value(error)) from None
    if left_over:
        raise UserError(unknown(left_over[0]))


def help_of_modules() -> str:
    """Returns the help text for the flags that the user's modules define."""
    return "".join(
        f"{flags.FLAGS.module_help(module)}\n" for module in sorted(_modules())
    )


def _modules() -> list[str]:
    return [
        module
        for module in flags.FLAGS.flags_by_module_dict()
        if module.split(".")[0] not in _LIBRARIES
    ]

"""Parses the command line.

Nothing here imports TensorFlow, so that `--help` and a mistyped flag are
answered at once.
"""

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from absl import flags

from trainer.errors import UserError, did_you_mean
from trainer.run_options import (
    READING_MODES,
    Mode,
    RunOptions,
    TrainerFlags,
    declared_in,
    option,
)
from trainer.values.annotations import Positive, Text
from trainer.values.checks import why_not
from trainer.values.words import describe, parts_of

HELP_FLAGS = {"-h", "-help", "--help", "--helpshort", "--helpfull"}
# DOTALL, because a value may span several lines.
_GIN_FLAG = re.compile(r"--?gin\.(?P<name>[^=]*)(?P<value>=.*)?", re.DOTALL)
_FIRST, _LAST = "What to run", "Help and messages"
GROUPS = (_FIRST, "Training", "Devices", "Clusters", "Debugging", _LAST)


class Binding(NamedTuple):
    """A gin binding from the command line.

    Attributes:
        source: its name in messages, such as `"--batch_size=32"`.
        text: gin text, such as `"trainer.Trainer.batch_size = 32"`.
        parameter: the parameter that a named flag sets, such as
            `"Trainer.batch_size"`; `""` for a gin flag.
    """

    source: str
    text: str
    parameter: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """A parsed command line: the flags that are for no configurable.

    Attributes:
        bindings: of all other flags, in order of precedence; the last one
            wins.
        named: the values of all flags that were given.
    """

    gin_file: Sequence[Text] = option((), "A gin file", group=_FIRST)
    gin_search_path: Text = option(
        "", "More folders to search for gin files: A,B.", group=_FIRST
    )
    gin_param: Sequence[Text] = option(
        (), "A binding such as 'Adam.beta_1=0.8'", group=_FIRST
    )
    model_dir: Text | None = option(
        None,
        "Where the run lives; resumes if it holds a run. "
        "Default: runs/<experiment>/<time>.",
        group=_FIRST,
    )
    mode: Mode | Literal["print_config"] = option(
        "train_and_eval", "What to do. Default: train_and_eval.", group=_FIRST
    )
    allow_unused_bindings: bool = option(
        False, "Only warn about bindings that nothing uses.", group=_FIRST
    )
    epochs: Positive | None = option(
        None,
        "Total number of epochs, in place of --train_steps.",
        group="Training",
    )
    flagfile: Text = option(
        "",
        "A file with more flags, one on each line; # begins a comment.",
        group=_LAST,
    )
    verbosity: int = option(
        -1, "-1 warnings (default), 0 information, 1 everything.", group=_LAST
    )
    bindings: tuple[Binding, ...]
    named: dict[str, Any]

    @property
    def search_path(self) -> list[str]:
        """Further folders to search for gin files."""
        return [one for one in self.gin_search_path.split(",") if one]

    @property
    def list_strategies(self) -> bool:
        """Whether `--strategy=help` was given."""
        return bool(self.named.get("strategy") == "help")

    @property
    def is_run(self) -> bool:
        """Whether anything is built, and not only printed."""
        return not self.list_strategies and self.mode != "print_config"

    @property
    def named_flags(self) -> dict[str, str]:
        """The named flags as given, by the parameter that each one sets."""
        return {
            one.parameter.split(".")[1]: one.source
            for one in self.bindings
            if one.parameter
        }


class Flag(NamedTuple):
    """One flag of the command line.

    Attributes:
        kind: the annotation of its value, or of each if it may be repeated.
        about: one sentence.
        group: under which `--help` lists it.
        binds: the gin parameter that it sets; `""` for none.
    """

    kind: Any
    about: str
    group: str
    binds: str

    @property
    def is_switch(self) -> bool:
        """Whether it can be given without a value."""
        return bool in parts_of(self.kind)


FLAGS = {
    name: Flag(
        kind=kind,
        about=facts.about,
        group=facts.group,
        binds=owner and f"{owner}.{facts.binds or name}",
    )
    for declaring, owner in (
        (Request, ""),
        (RunOptions, "run"),
        (TrainerFlags, "Trainer"),
    )
    for name, (kind, facts) in declared_in(declaring).items()
    if facts.group
}


class _Parser(flags.ArgumentParser):
    """Reads a value by its annotation; absl adds the flag to messages."""

    def __init__(self, *, kind: Any) -> None:
        self.kind = kind
        # What --[no]NAME and any text say by themselves is left out.
        says = "" if kind in (bool, Text, Text | None) else describe(kind)
        self.syntactic_help = re.sub(",? or None$", "", says)

    def parse(self, argument: str) -> Any:
        """See `absl.flags.ArgumentParser`."""
        kinds = set(parts_of(self.kind))
        words = {"true": True, "false": False} if bool in kinds else {}
        value: Any = words.get(argument.lower(), argument)
        # Where whole numbers are wanted, any other one is refused as such.
        for kind in (int, float) if int in kinds else kinds & {float}:
            with contextlib.suppress(ValueError):
                value = kind(argument)
                break
        if why := why_not(value, self.kind):
            raise ValueError(why)
        return value


def define(known: Mapping[str, Flag] = FLAGS) -> flags.FlagValues:
    """Defines flags, by group.

    They are in a set of their own: absl's holds the flags of every imported
    library, and would accept and list them.
    """
    values = flags.FlagValues()
    values.set_gnu_getopt()
    for name, flag in known.items():
        repeats = flag.kind == Sequence[Text]
        make = flags.MultiFlag if repeats else flags.Flag
        made = make(
            _Parser(kind=Text if repeats else flag.kind),
            flags.ArgumentSerializer(),
            name,
            None,
            flag.about,
            boolean=flag.is_switch,
        )
        flags.DEFINE_flag(made, values, module_name=flag.group)
    return values


def parse(arguments: Sequence[str]) -> Request:
    """Parses the command line.

    Raises:
        UserError: a flag is unknown, or its value is invalid.
    """
    values = define()
    others = set_values(values, arguments)
    named = {name: values[name].value for name in FLAGS if values[name].present}
    own = declared_in(Request)
    given = {name: value for name, value in named.items() if name in own}
    params = [
        Binding(f"--gin_param={text!r}", text)
        for text in given.get("gin_param", ())
    ]
    gin_flags = map(_gin_flag, others)
    request = Request(
        **given,
        bindings=(*params, *gin_flags, *_named_bindings(named)),
        named=named,
    )
    if not (request.gin_file or request.list_strategies):
        raise UserError(
            "There is nothing to run. Give a configuration: --gin_file=FILE "
            "(see --help)."
        )
    # The default is a new directory, in which there is nothing to read.
    if request.mode in READING_MODES and request.model_dir is None:
        raise UserError(
            f"--mode={request.mode} needs --model_dir=DIR, the directory of a "
            "run."
        )
    if {"train_steps", "epochs"} <= named.keys():
        raise UserError(
            "--train_steps and --epochs both say how long to train: give one."
        )
    return request


def set_values(values: flags.FlagValues, arguments: Sequence[str]) -> list[str]:
    """Gives flags their values; returns the arguments that are none of them."""
    for argument in arguments:
        try:
            argument.encode()
        # Python holds what is not UTF-8 as surrogates.
        except UnicodeError:
            raise UserError(
                f"The argument {ascii(argument)} is not valid UTF-8."
            ) from None
    try:
        # absl takes the first element for the program's name.
        others = values(["trainer", *arguments], known_only=True)[1:]
    except UnicodeDecodeError:
        raise UserError("The file of --flagfile is not text.") from None
    except (flags.Error, ValueError) as error:
        message = " ".join(str(error).split()).replace("flag --", "--")
        raise UserError(message.removeprefix("ERROR:: ")) from None
    return list(others)


def _gin_flag(argument: str) -> Binding:
    """Reads `--gin.A.b=1`, which absl does not know."""
    match = _GIN_FLAG.fullmatch(argument)
    if match is None:
        raise UserError(_unknown(argument))
    if not match["name"] or not match["value"]:
        raise UserError(
            f"{argument} needs a name and a value, as in --gin.A.b=1."
        )
    return Binding(argument, f"{match['name']} = {match['value'][1:]}")


def _named_bindings(named: Mapping[str, Any]) -> Iterator[Binding]:
    for name, value in named.items():
        source, parameter = f"--{name}={value}", FLAGS[name].binds
        if name == "epochs":
            parameter, value = "run.train_steps", f"{value} epochs"
        if parameter:
            # The full name, because user code may have another Trainer or run.
            # `repr` is a gin literal for all the types that flags have.
            text = f"trainer.{parameter} = {value!r}"
            yield Binding(source, text, parameter)


def _unknown(argument: str) -> str:
    """Returns the error for an argument that no flag accounts for."""
    if argument.startswith("-"):
        name = argument.lstrip("-").partition("=")[0]
        # absl accepts --noNAME for a switch.
        switches = [f"no{n}" for n, flag in FLAGS.items() if flag.is_switch]
        known = [*FLAGS, "help", *switches]
        hint = did_you_mean(name, known, prefix="--")
        return f"Unknown flag --{name}.{hint} --help lists the flags."
    what = f"Unexpected argument {argument!r}"
    if argument.endswith(".gin"):
        return f"{what}. Did you mean --gin_file={argument}?"
    return f"{what}: write --flag=value, and quote values that contain spaces."

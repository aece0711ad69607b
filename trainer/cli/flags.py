"""Parses the command line.

Nothing here imports TensorFlow, so that `--help` and a mistyped flag are
answered at once.
"""

import dataclasses
import functools
import math
import re
from collections.abc import (
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from typing import Any

from absl import flags

from trainer.cli.flag_table import FLAGS, READING_MODES, Flag
from trainer.errors import UserError, did_you_mean, nearest

# DOTALL, because a value may span several lines.
_GIN_FLAG = re.compile(r"--?gin\.(?P<name>[^=]*)(?P<value>=.*)?", re.DOTALL)

# The start of absl's message, which goes on with the reason.
_BAD_VALUE = re.compile(r"flag --(?P<name>\w+)=(?P<value>.*?): ", re.DOTALL)
_KINDS = {
    "string": "text that is not empty",
    "strings": "text that is not empty",
    "list": "a comma list without empty parts",
    "integer": "an integer",
    "float": "a number",
    "boolean": "true or false",
}
# What absl's parsers let through.
_CHECKS: dict[str, Callable[[Any], bool]] = {
    "string": bool,
    "strings": all,
    "list": lambda parts: bool(parts) and all(parts),
    "float": math.isfinite,
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
        mode: one of `MODES`.
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
        return not (
            self.full_help
            or self.list_strategies
            or self.mode == "print_config"
        )

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
    values, left_over = _parse_named(rest)
    given = {name: values[name].value for name in FLAGS if values[name].present}
    mode = given.get("mode", "train_and_eval")
    list_strategies = given.get("strategy") == "help"
    full_help = given.get("helpfull", False)
    # Without a gin file there are no modules that could have more flags.
    if left_over and not (given.get("gin_file") and left_over[0][:1] == "-"):
        raise UserError(unknown(left_over[0]))
    if not (given.get("gin_file") or list_strategies or full_help):
        raise UserError(
            "There is nothing to run. Give a configuration: --gin_file=FILE "
            "(see --help)."
        )
    # The default is a new directory, in which there is nothing to read.
    if mode in READING_MODES and not given.get("model_dir"):
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
        for name, value in given.items()
        if FLAGS[name].binds is not None
    ]
    return Request(
        mode=mode,
        model_dir=given.get("model_dir"),
        gin_files=tuple(given.get("gin_file", ())),
        gin_search_path=tuple(given.get("gin_search_path", ())),
        bindings=(*params, *gin_flags, *named),
        list_strategies=list_strategies,
        allow_unused_bindings=given.get("allow_unused_bindings", False),
        full_help=full_help,
        verbosity=given.get("verbosity", -1),
        named={name: values[name].serialize() for name in given},
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
) -> tuple[flags.FlagValues, list[str]]:
    """Returns the values of `FLAGS`, and the arguments that are not theirs."""
    # A set of our own: the global FLAGS holds those of every imported library,
    # and would accept and list them.
    values = flags.FlagValues()
    values.set_gnu_getopt()
    for flag in FLAGS.values():
        _define(flag, values)
    try:
        # absl takes the first element for the program's name.
        return values, values(["trainer", *arguments], known_only=True)[1:]
    except (flags.Error, ValueError) as error:
        kinds = {name: _valid(flag) for name, flag in FLAGS.items()}
        raise UserError(bad_value(str(error), kinds)) from None


def _define(flag: Flag, values: flags.FlagValues) -> None:
    if flag.choices and flag.kind != "choice":
        _define_with_words(flag, values)
        return
    # No default: a flag that is not given must not override a gin file.
    define = functools.partial(
        {
            "string": flags.DEFINE_string,
            "choice": flags.DEFINE_enum,
            "strings": flags.DEFINE_multi_string,
            "list": flags.DEFINE_list,
            "integer": flags.DEFINE_integer,
            "float": flags.DEFINE_float,
            "boolean": flags.DEFINE_boolean,
        }[flag.kind],
        flag.name,
        None,
        help=flag.help,
        flag_values=values,
    )
    if flag.kind == "choice":
        define(enum_values=flag.choices)
    elif flag.least is not None:
        define(lower_bound=flag.least)
    else:
        define()
    if flag.kind in _CHECKS:
        flags.register_validator(
            flag.name,
            lambda value: value is None or _CHECKS[flag.kind](value),
            flag_values=values,
        )


def _define_with_words(flag: Flag, values: flags.FlagValues) -> None:
    """Defines a boolean or an integer that may also be a word."""
    if flag.kind == "boolean":
        made: flags.Flag = _Worded(flag.name, None, flag.help)
        made.parser = _OrWord(made.parser, flag.choices)
    else:
        parser = _OrWord(flags.IntegerParser(flag.least), flag.choices)
        made = flags.Flag(
            parser, flags.ArgumentSerializer(), flag.name, None, flag.help
        )
    flags.DEFINE_flag(made, values)


class _OrWord(flags.ArgumentParser):
    """Takes a few words beside what another parser takes."""

    def __init__(
        self, parser: flags.ArgumentParser, words: Sequence[str]
    ) -> None:
        self._parser = parser
        self._words = words

    def parse(self, argument: Any) -> Any:
        """See `absl.flags.ArgumentParser`."""
        return (
            argument
            if argument in self._words
            else self._parser.parse(argument)
        )

    def flag_type(self) -> str:
        """See `absl.flags.ArgumentParser`."""
        return self._parser.flag_type()


class _Worded(flags.BooleanFlag):
    """A boolean flag that also takes words."""

    def serialize(self) -> str:
        """See `absl.flags.Flag`."""
        if isinstance(self.value, str):
            return f"--{self.name}={self.value}"
        return super().serialize()


def _valid(flag: Flag) -> str | Sequence[str]:
    """Returns what is valid, for `bad_value`."""
    if flag.kind == "choice":
        return flag.choices
    least = "" if flag.least is None else f", at least {flag.least}"
    words = "".join(f", or {word!r}" for word in flag.choices)
    return f"{_KINDS[flag.kind]}{least}{words}"


def _as_binding(flag: Flag, value: Any) -> Binding:
    shown = ",".join(value) if isinstance(value, list) else value
    if flag.unit:
        value = f"{value} {flag.unit}"
    # The full name, because user code may have another Trainer or run.
    # `repr` is a gin literal for all the types that flags have.
    text = f"trainer.{flag.binds} = {value!r}"
    return Binding(f"--{flag.name}={shown}", text, flag.binds)


def unknown(argument: str, more: Iterable[str] = ()) -> str:
    """Returns the error for an argument that no flag accounts for."""
    if argument.startswith("-"):
        name = argument.lstrip("-").partition("=")[0]
        booleans = [n for n, flag in FLAGS.items() if flag.kind == "boolean"]
        # absl accepts --noNAME for a boolean.
        known = [*FLAGS, *more, "help", *(f"no{n}" for n in booleans)]
        hint = did_you_mean(name, known, prefix="--")
        return f"Unknown flag --{name}.{hint} --help lists the flags."
    what = f"Unexpected argument {argument!r}"
    if argument.endswith(".gin"):
        return f"{what}. Did you mean --gin_file={argument}?"
    return f"{what}: write --flag=value, and quote values that contain spaces."


def bad_value(message: str, kinds: Mapping[str, str | Sequence[str]]) -> str:
    """Rewrites absl's message on a value to say what is valid.

    Args:
        message: absl's message.
        kinds: the valid values by flag: in words, such as `"an integer"`, or
            one by one.
    """
    match = _BAD_VALUE.match(message)
    if match is None or match["name"] not in kinds:
        return message.split("\n")[0].replace("for flag --", "for --")
    name, value = match["name"], match["value"]
    kind = kinds[name]
    if isinstance(kind, str):
        return f"--{name}={value}: must be {kind}."
    return f"--{name}={value}: there is no such {name}. {nearest(value, kind)}"

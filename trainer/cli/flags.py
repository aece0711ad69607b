"""Parses the command line.

Nothing here imports TensorFlow, so that `--help` and a mistyped flag are
answered at once.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from trainer.cli.config.suggest import did_you_mean
from trainer.cli.flag_table import FLAGS, READING_MODES, Flag
from trainer.errors import UserError, nearest

# DOTALL, because a value may span several lines.
_GIN_FLAG = re.compile(r"--?gin\.(?P<name>[^=]*)(?P<value>=.*)?", re.DOTALL)

# The start of absl's message, which goes on with the reason.
_BAD_VALUE = re.compile(r"flag --(?P<name>\w+)=(?P<value>.*?): ")
_KINDS = {
    "string": "text",
    "choice": "one word",
    "strings": "text",
    "list": "a comma list",
    "integer": "an integer",
    "float": "a number",
    "boolean": "true or false",
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
        verbosity: for `absl.logging.set_verbosity`.
    """

    mode: str
    model_dir: str | None
    gin_files: tuple[str, ...]
    gin_search_path: tuple[str, ...]
    bindings: tuple[Binding, ...]
    list_strategies: bool
    allow_unused_bindings: bool
    verbosity: int


def parse(arguments: Sequence[str]) -> Request:
    """Parses the command line.

    Args:
        arguments: without the program's name.

    Raises:
        UserError: a flag is unknown, or its value is invalid.
    """
    rest, gin_flags = _take_gin_flags(arguments)
    given = _parse_named(rest)
    mode = given.get("mode", "train_and_eval")
    list_strategies = given.get("strategy") == "help"
    if not (given.get("gin_file") or list_strategies):
        raise UserError(
            "There is nothing to run. Give a configuration: --gin_file=FILE "
            "(see --help)."
        )
    # The default is a new directory, in which there is nothing to read.
    if mode in READING_MODES and not given.get("model_dir"):
        raise UserError(
            f"--mode={mode} needs --model_dir=DIR, the directory of a run."
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
        verbosity=given.get("verbosity", -1),
    )


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


def _parse_named(arguments: Sequence[str]) -> dict[str, Any]:
    """Returns the named flags that were given, in the order of `FLAGS`."""
    # A set of our own: the global FLAGS holds those of every imported library,
    # and would accept and list them.
    values = flags.FlagValues()
    for flag in FLAGS.values():
        _define(flag, values)
    try:
        # absl takes the first element for the program's name.
        left_over = values(["trainer", *arguments])[1:]
    except flags.UnrecognizedFlagError as error:
        raise UserError(_unknown(error.flagname)) from None
    except (flags.Error, ValueError) as error:
        kinds = {name: _KINDS[flag.kind] for name, flag in FLAGS.items()}
        raise UserError(bad_value(str(error), kinds)) from None
    if left_over:
        raise UserError(_unexpected(left_over[0]))
    given = {name: values[name].value for name in FLAGS if values[name].present}
    for name, value in given.items():
        _check(FLAGS[name], value)
    return given


def _define(flag: Flag, values: flags.FlagValues) -> None:
    define = {
        "string": flags.DEFINE_string,
        # Not DEFINE_enum: `_check` also suggests the nearest choice.
        "choice": flags.DEFINE_string,
        "strings": flags.DEFINE_multi_string,
        "list": flags.DEFINE_list,
        "integer": flags.DEFINE_integer,
        "float": flags.DEFINE_float,
        "boolean": flags.DEFINE_boolean,
    }[flag.kind]
    # No default: a flag that is not given must not override a gin file.
    define(flag.name, None, flag.help, flag_values=values)


def _check(flag: Flag, value: Any) -> None:
    shown = f"--{flag.name}={value}"
    if flag.kind == "choice" and value not in flag.choices:
        raise UserError(
            f"{shown}: there is no such {flag.name}. "
            f"{nearest(value, flag.choices)}"
        )
    # Written this way round so that NaN is refused, too.
    if flag.least is not None and not value >= flag.least:
        raise UserError(f"{shown}: must be at least {flag.least}.")
    if flag.kind in ("string", "strings", "list") and not value:
        raise UserError(f"{shown} is empty.")


def _as_binding(flag: Flag, value: Any) -> Binding:
    shown = ",".join(value) if isinstance(value, list) else value
    # The full name, because user code may have another Trainer or run.
    # `repr` is a gin literal for all the types that flags have.
    text = f"trainer.{flag.binds} = {value!r}"
    return Binding(f"--{flag.name}={shown}", text, flag.binds)


def _unknown(name: str) -> str:
    # absl accepts --noNAME for a boolean.
    known = [*FLAGS, "help", *(f"no{n}" for n in _booleans())]
    hint = did_you_mean(name, known, prefix="--")
    return f"Unknown flag --{name}.{hint} --help lists the flags."


def _booleans() -> list[str]:
    return [name for name, flag in FLAGS.items() if flag.kind == "boolean"]


def _unexpected(argument: str) -> str:
    if argument.endswith(".gin"):
        return (
            f"Unexpected argument {argument!r}. Did you mean "
            f"--gin_file={argument}?"
        )
    return (
        f"Unexpected argument {argument!r}: write --flag=value, and quote "
        "values that contain spaces."
    )


def bad_value(message: str, kinds: Mapping[str, str]) -> str:
    """Rewrites absl's message on a value to say what is valid.

    Args:
        message: absl's message.
        kinds: the valid values by flag, such as `"an integer"`.
    """
    match = _BAD_VALUE.match(message)
    if match is None or match["name"] not in kinds:
        return message.split("\n")[0].replace("for flag --", "for --")
    kind = kinds[match["name"]]
    return f"--{match['name']}={match['value']}: must be {kind}."

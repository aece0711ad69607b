"""Errors that a user can act on, and the exit codes of a run."""

import contextlib
import difflib
import re
import traceback
from collections.abc import Iterable, Iterator

# The file names of a notebook's cells.
_CELL = re.compile(r"ipykernel_\d|<ipython-input|<stdin>")

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USER_ERROR = 2
EXIT_START_AGAIN = 75


class UserError(ValueError):
    """A mistake in the user's input; a `ValueError`, as in Keras.

    The message is one to three lines: what is wrong, where, and the nearest
    valid choice. The command line prints it without a traceback and exits
    with `EXIT_USER_ERROR`.
    """

    # It tells AutoGraph that it can make one with a message of its own.
    __init__ = Exception.__init__

    def _render_traceback_(self) -> list[str]:
        """Returns the user's line and the message, for IPython."""
        frames = traceback.extract_tb(self.__traceback__)
        cells = [f for f in frames if _CELL.search(f.filename)]
        where = [f"    {cells[-1].line}"] if cells and cells[-1].line else []
        return [*where, f"{type(self).__name__}: {self}"]


class BadValue(UserError):
    """A parameter has a value that it cannot have.

    Args:
        owner: the class or function, such as `"Checkpoint"`.
        parameter: its parameter.
        value: as it is shown.
        wanted: the rest of the sentence, such as `"must be True or False."`
    """

    def __init__(
        self, *, owner: str, parameter: str, value: str, wanted: str
    ) -> None:
        super().__init__(f"{owner}.{parameter} = {value} {wanted}")
        self.parameter = parameter
        self.value = value
        self.wanted = wanted


class StartAgain(Exception):  # noqa: N818 - a request, not a defect
    """The run was preempted, lost a peer, or something in it hung.

    The command line exits with `EXIT_START_AGAIN`: the same command continues
    from the newest checkpoint.
    """


class Diverged(Exception):  # noqa: N818 - an outcome, not a defect
    """Training has diverged, and may not or cannot roll back.

    The command line prints the message without a traceback, and exits as after
    any other failure.
    """


def nearest(name: object, valid: Iterable[str]) -> str:
    """Returns a hint which of the `valid` names `name` probably means.

    Args:
        name: what the user wrote.
        valid: every name that would have been accepted.

    Returns:
        A hint such as `"Did you mean 'mirrored'? Valid: default, ..."`;
        only the list if there is no close match.
    """
    names = sorted(set(valid))
    listed = f"Valid: {', '.join(names) or 'none'}."
    return f"{did_you_mean(name, names, cutoff=0.5)} {listed}".lstrip()


def did_you_mean(
    name: object, valid: Iterable[str], *, prefix: str = "", cutoff: float = 0.6
) -> str:
    """Returns a hint where there are too many valid names to list them.

    Args:
        name: the name as written.
        valid: every name that would have been accepted.
        prefix: shown before the suggested name, such as `"--"`.
        cutoff: how similar it must be, from 0 to 1.

    Returns:
        `" Did you mean 'x'?"` with a leading space, or an empty string.
    """
    # Compare without case: `adam` should suggest `Adam`, and `lr` a
    # `learning_rate`.
    lower: dict[str, str] = {}
    initials: dict[str, str] = {}
    for one in sorted(set(valid)):
        lower.setdefault(one.lower(), one)
        parts = one.lower().split("_")
        if len(parts) > 1:
            initials.setdefault("".join(part[:1] for part in parts), one)
    wanted = str(name).lower()
    close = difflib.get_close_matches(wanted, lower, 1, cutoff)
    found = lower[close[0]] if close else initials.get(wanted)
    return f" Did you mean '{prefix}{found}'?" if found else ""


_AT_RUN_TIME = "UserError: "
# Keras wraps the message of an error that a layer raises like this.
KERAS_ADDS = re.compile(
    r"Exception encountered when calling .*?\x1b\[1m(.*?)\x1b\[0m.*", re.DOTALL
)


def at_run_time(sentence: str) -> str:
    """Returns an assertion message that will be raised as a `UserError`.

    Args:
        sentence: the message of the `UserError` that `outside_graph` raises.
    """
    return f"{_AT_RUN_TIME}{sentence}{_AT_RUN_TIME}"


@contextlib.contextmanager
def outside_graph() -> Iterator[None]:
    """Restores a `UserError` that was raised in a traced function.

    AutoGraph replaces the message of an exception by a listing of stack frames,
    and Keras wraps the error of a layer in a description of its arguments. An
    assertion with a message from `at_run_time` becomes a `UserError`, too.
    """
    try:
        yield
    except UserError as error:
        traced = getattr(error, "ag_error_metadata", None)
        message = str(error) if traced is None else traced.cause_message
        sentence = KERAS_ADDS.sub(r"\1", message.removeprefix("UserError: "))
        if sentence == str(error):
            raise
        raise UserError(sentence) from None
    except Exception as error:
        parts = str(error).split(_AT_RUN_TIME)
        if len(parts) < 3:
            raise
        raise UserError(parts[1]) from None

"""Errors that a user can act on, and the exit codes of a run."""

import contextlib
import difflib
import re
from collections.abc import Iterable, Iterator

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USER_ERROR = 2
EXIT_START_AGAIN = 75


class UserError(Exception):
    """What the user gave is wrong.

    The message is one to three lines: what is wrong, where, and the nearest
    valid choice. The command line prints it without a traceback and exits
    with `EXIT_USER_ERROR`.
    """


class StartAgain(Exception):  # noqa: N818 - a request, not a defect
    """The run was preempted, lost a peer, or something in it hung.

    The command line exits with `EXIT_START_AGAIN`: the same command goes on
    from the newest checkpoint.

    Args:
        *args: a sentence that says why.
        for_others: whether this process leaves in order because of others,
            such as a worker that has come back. A restart policy need not
            count such a restart.
    """

    def __init__(self, *args: object, for_others: bool = False) -> None:
        super().__init__(*args)
        self.for_others = for_others


class Diverged(Exception):  # noqa: N818 - what happened, not a defect
    """Training has diverged, and the run may not or cannot roll back.

    The message is a sentence; the command line prints it without a
    traceback, and exits as after any other failure.
    """


def nearest(name: object, valid: Iterable[str]) -> str:
    """Says which of the `valid` names was probably meant by `name`.

    Args:
        name: what the user wrote.
        valid: every name that would have been accepted.

    Returns:
        A sentence such as `"Did you mean 'mirrored'? Valid: default, ..."`;
        without a close match only the list.
    """
    names = sorted(set(valid))
    listed = f"Valid: {', '.join(names) or 'none'}."
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    return f"Did you mean '{close[0]}'? {listed}" if close else listed


# Marks both ends of a sentence in the message of a failed assertion, which
# TensorFlow surrounds with the names of nodes and functions.
_AT_RUN_TIME = "UserError: "
# How Keras rewrites the message of an error that a layer raises: the original
# one is between the codes for bold text.
_BY_KERAS = re.compile(
    r"Exception encountered when calling .*?\x1b\[1m(.*?)\x1b\[0m.*", re.DOTALL
)


def at_run_time(sentence: str) -> str:
    """The message of an assertion in a graph, to become a `UserError`.

    Args:
        sentence: what `outside_graph` raises when the assertion fails.
    """
    return f"{_AT_RUN_TIME}{sentence}{_AT_RUN_TIME}"


@contextlib.contextmanager
def outside_graph() -> Iterator[None]:
    """Lets a `UserError` leave a traced function as it was raised.

    AutoGraph rewrites the messages of exceptions into a listing of stack
    frames, and Keras adds the layer's arguments to what a layer raises. An
    assertion whose message comes from `at_run_time` becomes a `UserError`,
    too.
    """
    try:
        yield
    except UserError as error:
        traced = getattr(error, "ag_error_metadata", None)
        message = str(error) if traced is None else traced.cause_message
        sentence = _BY_KERAS.sub(r"\1", message.removeprefix("UserError: "))
        # Nothing was rewritten: keep the traceback.
        if sentence == str(error):
            raise
        raise UserError(sentence) from None
    except Exception as error:
        parts = str(error).split(_AT_RUN_TIME)
        if len(parts) < 3:
            raise
        raise UserError(parts[1]) from None

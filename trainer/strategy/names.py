"""The check of a strategy's name; nothing here imports TensorFlow."""

from collections.abc import Iterable

from trainer.errors import UserError, nearest


def check_strategy(name: str, known: Iterable[str]) -> None:
    """Refuses a strategy that there is not.

    Args:
        name: as given, or `"auto"`.
        known: the names of all strategies.

    Raises:
        UserError: it is none of them.
    """
    valid = ["auto", *known]
    if name not in valid:
        raise UserError(f"Unknown strategy {name!r}. {nearest(name, valid)}")

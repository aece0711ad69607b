"""The names of the two splits."""

from trainer import UserError
from trainer.plugin_api import nearest

SPLITS = ("train", "eval")


def check_split(split: str) -> None:
    """Refuses any name but `"train"` and `"eval"`.

    Raises:
        UserError: it is another one.
    """
    if split not in SPLITS:
        raise UserError(f"Unknown split {split!r}. {nearest(split, SPLITS)}")

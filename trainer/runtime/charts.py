"""Curves, drawn with matplotlib, which is an extra.

Nothing here imports TensorFlow.
"""

import importlib.util

from trainer.errors import UserError


def require_matplotlib(what: str) -> None:
    """Makes sure that curves can be drawn.

    Args:
        what: asks for them, for the message.

    Raises:
        UserError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError(
            f"{what} needs matplotlib: pip install "
            "'keras-trainer-plugins[plot]'."
        )

"""What charts need: bars of text, and matplotlib for those of pixels.

Nothing here imports TensorFlow.
"""

import importlib.util

from trainer.errors import UserError

_BARS = "▁▂▃▄▅▆▇█"


def bar(share: float) -> str:
    """A character that is filled up to a share, from 0 to 1, of its height."""
    return _BARS[min(int(share * len(_BARS)), len(_BARS) - 1)]


def require_matplotlib(what: str) -> None:
    """Makes sure that a picture can be drawn.

    Args:
        what: is drawn, for the message.

    Raises:
        UserError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError(
            f"{what} needs matplotlib: pip install "
            "'keras-trainer-plugins[plot]'."
        )

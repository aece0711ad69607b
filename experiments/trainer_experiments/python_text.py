"""English text that comes with Python: the help on its own topics."""

import numpy as np

from trainer import ArrayExamples
from trainer.plugin_api import Split, configurable
from trainer_experiments.models import Width

# Printable ASCII, after the end of a line and what is neither.
VOCABULARY = "\n\N{REPLACEMENT CHARACTER}" + "".join(map(chr, range(32, 127)))
_TRAIN_FRACTION = 0.9


def encode(text: str) -> np.ndarray:
    """Numbers of characters, int32 `[len(text)]`."""
    numbers = {one: i for i, one in enumerate(VOCABULARY)}
    return np.array([numbers.get(one, 1) for one in text], np.int32)


def decode(numbers: np.ndarray) -> str:
    """The text of numbers of characters `[n]`."""
    return "".join(VOCABULARY[one] for one in numbers)


@configurable(module="experiments")
def python_text(split: Split, *, length: Width = 64) -> ArrayExamples:
    """Pieces of the text of Python's `help("topics")`, some 460,000 characters.

    Args:
        split: `"train"`, the first nine tenths, or `"eval"`.
        length: characters of a piece.

    Returns:
        Characters, int32 `[n, length]`, and for each the next one. Pieces do
        not overlap. The text differs a little between versions of Python.
    """
    from pydoc_data.topics import topics

    numbers = encode("\n".join(topics[name] for name in sorted(topics)))
    cut = int(_TRAIN_FRACTION * len(numbers))
    part = numbers[:cut] if split == "train" else numbers[cut:]
    count = (len(part) - 1) // length
    x, y = (
        part[first : first + count * length].reshape(count, length)
        for first in (0, 1)
    )
    return ArrayExamples((x, y), shuffle=split == "train")

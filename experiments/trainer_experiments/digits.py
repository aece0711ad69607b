"""The 1,797 handwritten digits that scikit-learn ships."""

import numpy as np

from trainer import ArrayExamples, UserError
from trainer.plugin_api import Split, configurable

_TEST_FRACTION = 0.2
_SPLIT_SEED = 0


@configurable(module="experiments")
def digits(split: Split) -> ArrayExamples:
    """Real 8x8 digits, without a download; one in five is for testing.

    The digits are those of the UCI data set "Optical Recognition of
    Handwritten Digits" (E. Alpaydin and C. Kaynak, 1998). The split is fixed
    and stratified by class.

    Args:
        split: `"train"` (1,437 digits) or `"eval"` (360 digits).

    Returns:
        Images, float32 `[n, 8, 8, 1]` in [0, 1], and labels, int32 `[n]`.

    Raises:
        UserError: scikit-learn is not installed.
    """
    # Imported here: scikit-learn is an optional dependency.
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ModuleNotFoundError:
        raise UserError(
            "The digits come with scikit-learn, which is not installed: "
            "pip install 'keras-trainer-plugins[digits]'"
        ) from None
    bunch = load_digits()
    # Pixels count dots in a 4x4 block, 0 to 16.
    images = (bunch.images / 16.0).astype(np.float32)[..., np.newaxis]
    labels = bunch.target.astype(np.int32)
    train_x, eval_x, train_y, eval_y = train_test_split(
        images,
        labels,
        test_size=_TEST_FRACTION,
        random_state=_SPLIT_SEED,
        stratify=labels,
    )
    if split == "train":
        return ArrayExamples((train_x, train_y))
    return ArrayExamples((eval_x, eval_y), shuffle=False)

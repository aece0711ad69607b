"""Private names of Keras, TensorFlow and gin: each is required at start.

An upgrade that moves one then fails with an error before the first step,
not with a wrong number. Each package has one file that may use such names.
"""

import importlib
import importlib.metadata
from typing import Any

from trainer.errors import UserError

_PACKAGES = ("keras", "tensorflow", "gin-config")


def require(owner: Any, name: str) -> Any:
    """Returns a private attribute, which must be there.

    Args:
        owner: a class, an object, a module, or the name of a module, such as
            `"keras.src.backend.common.global_state"`.
        name: the attribute.

    Raises:
        UserError: this version of the package does not have it.
    """
    place = owner
    try:
        if isinstance(owner, str):
            owner = importlib.import_module(owner)
        else:
            place = getattr(owner, "__name__", type(owner).__name__)
        return getattr(owner, name)
    except (ImportError, AttributeError):
        raise UserError(
            f"{place}.{name} is missing, and trainer needs it: this version "
            f"of its package is not one of {', '.join(_known_versions())}."
        ) from None


def _known_versions() -> list[str]:
    wanted = importlib.metadata.requires("keras-trainer-plugins") or []
    known = [one.partition(";")[0].strip() for one in wanted]
    # TensorFlow is in several extras.
    return sorted({one for one in known if one.startswith(_PACKAGES)})

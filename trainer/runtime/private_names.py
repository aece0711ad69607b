"""Private names of Keras, TensorFlow and gin: each is required at start.

An upgrade that moves one then fails with a sentence before the first step,
not with a wrong number. Each package has one file that may use such names.
"""

import importlib
import importlib.metadata
import inspect
import re
from typing import Any

from trainer.errors import UserError

# From a package to the distributions that hold it, the usual one first.
_DISTRIBUTIONS = {
    "gin": ("gin-config",),
    "keras": ("keras",),
    "tensorflow": (
        "tensorflow-cpu",
        "tensorflow",
        "tensorflow-tpu",
    ),
}


def require(owner: Any, name: str) -> Any:
    """Returns a private attribute, which must be there.

    Args:
        owner: a class, an object, a module, or the name of a module, such as
            `"keras.src.backend.common.global_state"`.
        name: the attribute.

    Raises:
        UserError: this version of the package does not have it.
    """
    given = owner
    if isinstance(owner, str):
        try:
            owner = importlib.import_module(owner)
        except ImportError:
            raise _missing(given, name) from None
    try:
        return getattr(owner, name)
    except AttributeError:
        raise _missing(given, name) from None


def _missing(owner: Any, name: str) -> UserError:
    if isinstance(owner, str):
        package, place = owner.partition(".")[0], owner
    elif inspect.ismodule(owner):
        package, place = owner.__name__.partition(".")[0], owner.__name__
    else:
        kind = owner if inspect.isclass(owner) else type(owner)
        # A subclass of a user's has the names of its base class.
        bases = (one.__module__.partition(".")[0] for one in kind.__mro__)
        package = next((one for one in bases if one in _DISTRIBUTIONS), "")
        place = kind.__name__
    installed, known = _versions(package)
    return UserError(
        f"{place}.{name} is missing from {package} {installed}, and trainer "
        f"needs it: install {package} {known}."
    )


def _versions(package: str) -> tuple[str, str]:
    """The installed version of a package, and those that are known to work."""
    names = _DISTRIBUTIONS.get(package, ())
    installed, known = "(unknown version)", "in another version"
    for name in names:
        try:
            installed = importlib.metadata.version(name)
            break
        except importlib.metadata.PackageNotFoundError:
            continue
    try:
        wanted = importlib.metadata.requires("keras-trainer-plugins") or []
    except importlib.metadata.PackageNotFoundError:
        wanted = []
    for one in wanted:
        found = re.match(r"([\w-]+)\s*([<>=!~][^;]*)", one)
        if found is not None and found[1] in names:
            # The lower bound first, as a reader expects it.
            bounds = found[2].strip().split(",")
            known = ",".join(sorted(bounds, reverse=True))
            break
    return installed, known

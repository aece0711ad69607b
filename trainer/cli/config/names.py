"""Resolves the names of configurables in a gin file.

Gin accepts the last parts of a name if they are unique. Keras has so many
names that a user's `Dense` or the plugin `EarlyStopping` would not be unique
any more. So a name means the configurable outside of Keras, if there is one;
`keras.callbacks.EarlyStopping` means the one of Keras. A name that is resolved
here is passed on in full, so that `config.gin` is unambiguous and plain gin
can read it.
"""

import gin
from gin.config import ConfigurableReference

from trainer.cli.config import gin_private as internals
from trainer.cli.config.old_names import present_name
from trainer.cli.config.suggest import did_you_mean
from trainer.errors import UserError


class Delegate(gin.config.ParserDelegate):
    """Creates the references of a gin file, resolving names as above."""

    def configurable_reference(
        self, scoped_selector: str, evaluate: bool
    ) -> ConfigurableReference:
        """Called by gin's parser for `@scope/name` and `@scope/name()`."""
        *scopes, selector = scoped_selector.split("/")
        full = "/".join([*scopes, resolve(selector)])
        return super().configurable_reference(full, evaluate)


def resolve(selector: str) -> str:
    """Returns a name that is unique for gin.

    Args:
        selector: the name as written, without scopes.

    Raises:
        UserError: it is unknown or ambiguous.
    """
    # Names in such a file are Python names, which gin resolves itself.
    if internals.dynamic_registration():
        return selector
    matches = internals.matching(selector)
    if len(matches) == 1:
        return selector
    if not matches and (renamed := present_name(selector)) is not None:
        matches = internals.matching(renamed)
    if not matches:
        raise UserError(
            f"there is no configurable '{selector}'."
            f"{did_you_mean(selector, _spellings(selector))} Is an import "
            "line missing?"
        )
    ours = [one for one in matches if not one.startswith("keras.")]
    if len(ours) == 1:
        return ours[0]
    choices = sorted(internals.minimal(one) for one in ours or matches)
    raise UserError(
        f"'{selector}' may mean {' or '.join(choices)}. Write one of these."
    )


def _spellings(selector: str) -> list[str]:
    """Returns all names with as many parts as the given one, to compare."""
    parts = selector.count(".") + 1
    return [
        ".".join(one.split(".")[-parts:])
        for one in internals.complete_selectors()
    ]

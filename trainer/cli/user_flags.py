"""absl flags that the modules of a user define.

They are known only once these modules are imported.
"""

from absl import flags

from trainer.cli.flags import Request, bad_value, unknown
from trainer.errors import UserError

# Their absl flags are not for this command line.
_LIBRARIES = ("absl", "keras", "tensorboard", "tensorflow")


def parse(request: Request) -> None:
    """Sets the absl flags that the user's modules have defined.

    Call this once these modules are imported.

    Raises:
        UserError: no module has defined such a flag, or it refuses the value.
    """
    values = flags.FlagValues()
    values.set_gnu_getopt()
    for module in modules():
        for flag in flags.FLAGS.get_flags_for_module(module):
            values[flag.name] = flag
    # A module may have a flag of the same name as one here, such as data_dir.
    shared = [
        line
        for name, text in request.named.items()
        if name in values
        for line in text.split("\n")
    ]
    try:
        left_over = values(["trainer", *shared, *request.left_over])[1:]
        # Only now that all are set: it also checks what must be set.
        flags.FLAGS(["trainer"])
    except flags.UnrecognizedFlagError as error:
        raise UserError(unknown(f"--{error.flagname}", values)) from None
    except (flags.Error, ValueError) as error:
        raise UserError(bad_value(str(error), {})) from None
    if left_over:
        raise UserError(unknown(left_over[0]))


def help_text() -> str:
    """Returns the help text for the flags that the user's modules define."""
    return "".join(
        f"{flags.FLAGS.module_help(module)}\n" for module in sorted(modules())
    )


def modules() -> list[str]:
    """Returns the modules that define absl flags, but for known libraries."""
    return [
        module
        for module in flags.FLAGS.flags_by_module_dict()
        if module.split(".")[0] not in _LIBRARIES
    ]

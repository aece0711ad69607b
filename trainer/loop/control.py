"""What is asked of a run from outside of its loop, by any of its processes."""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from trainer.trainer import Trainer


class Asked(NamedTuple):
    """What some process of the run asks for; equal in all of them.

    Attributes:
        stop: end training here.
        save: save a checkpoint.
        again: save and leave, to be started again.
        shorter: make the graph calls shorter.
    """

    stop: bool
    save: bool
    again: bool
    shorter: bool


def ask(trainer: "Trainer", *, shorter: bool = False) -> Asked:
    """One exchange among all processes, at one step.

    Args:
        trainer: what its users and callbacks have asked for.
        shorter: whether this process asks for shorter calls.
    """
    flags = Asked(
        stop=trainer.loop is not None and trainer.loop.is_stopped,
        save=trainer.save_asked,
        again=why_again(trainer) is not None,
        shorter=shorter,
    )
    return Asked(*trainer.plugin.any_of(flags))


def why_again(trainer: "Trainer") -> str | None:
    """Why this process asks to leave; `None` if it does not."""
    return trainer.again_reason or trainer.plugin.why_start_again()

"""What a checkpoint holds of the host loop: where it was, and if it is over."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from absl import logging

if TYPE_CHECKING:
    from trainer.loop import Loop


def capture(loop: "Loop") -> dict[str, Any]:
    """The loop's state between two graph calls, as JSON values."""
    trainer = loop.trainer
    stopped = None
    if loop.is_stopped:
        stopped = {
            "reason": trainer.stop_reason,
            "by_model": bool(trainer.model.stop_training),
            **_asked(loop),
        }
    return {
        "unfired_from": loop.unfired_from,
        "begun_epoch": loop.reports.begun_epoch,
        "steps_per_loop": loop.steps_per_loop,
        "asked_steps_per_loop": loop.asked_steps_per_loop,
        "stopped": stopped,
    }


def restore(loop: "Loop", state: Mapping[str, Any]) -> None:
    """Lets a loop go on where another one was."""
    loop.unfired_from = state["unfired_from"]
    loop.reports.begun_epoch = state["begun_epoch"]
    # What was found to be too long stays so, until somebody asks anew.
    if state["asked_steps_per_loop"] == loop.asked_steps_per_loop:
        loop.steps_per_loop = state["steps_per_loop"]
    _restore_stop(loop, state["stopped"])


def _restore_stop(loop: "Loop", stopped: Mapping[str, Any] | None) -> None:
    """A run that was stopped stays so, unless something else is asked."""
    trainer = loop.trainer
    trainer.model.stop_training = False
    if stopped is None:
        return
    why = stopped["reason"] or "a callback set stop_training"
    if all(stopped[name] == value for name, value in _asked(loop).items()):
        trainer.stop_reason = stopped["reason"]
        trainer.model.stop_training = stopped["by_model"]
        logging.warning(
            "The run was stopped at step %d (%s), and stays so. To train on, "
            "change train_steps, or what stopped it.",
            trainer.step,
            why,
        )
    else:
        logging.info(
            "The run was stopped at step %d (%s). Something else is asked "
            "for now: it goes on.",
            trainer.step,
            why,
        )


def _asked(loop: "Loop") -> dict[str, Any]:
    configuration = loop.trainer.plugin.facts.get("configuration")
    return {"steps": loop.steps, "configuration": configuration}

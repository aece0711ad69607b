"""What a checkpoint holds of the host loop: where it was, and if it is over."""

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from absl import logging

from trainer.checkpoint.schema import Misfit

if TYPE_CHECKING:
    from trainer.loop.loop import Loop


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
        "is_within": loop.is_within,
        # By the names that these had in the first format.
        "steps_per_loop": loop.steps_per_call,
        "asked_steps_per_loop": loop.steps_per_loop,
        "stopped": stopped,
        "before_end": loop.reports.before_end,
    }


def before_end(
    loop: "Loop", state: Mapping[str, Any], step: int
) -> dict[str, Any] | None:
    """What a run that goes on where another one ended goes on from.

    Args:
        loop: is about to run.
        state: what `capture` returned at the end of the other one.
        step: where that was.

    Returns:
        Logs and callbacks' states without what only the end had asked for;
        `None` if that was nothing, or if there is no step left to do.
    """
    stopped = state["stopped"]
    is_over = loop.steps <= step
    if is_over or (stopped is not None and _stays_stopped(loop, stopped)):
        return None
    found: dict[str, Any] | None = state.get("before_end")
    return found


def restore(loop: "Loop", state: Mapping[str, Any]) -> None:
    """Lets a loop go on where another one was."""
    loop.unfired_from = state["unfired_from"]
    loop.reports.begun_epoch = state["begun_epoch"]
    loop.is_within = state.get("is_within", False)
    # What was found to be too long stays so, until somebody asks anew.
    if state["asked_steps_per_loop"] == loop.steps_per_loop:
        loop.steps_per_call = state["steps_per_loop"]
    ended = before_end(loop, state, loop.trainer.step)
    loop.reports.taken_back = () if ended is None else ended["splits"]
    if ended is None:
        loop.reports.before_end = state.get("before_end")
    _restore_stop(loop, state["stopped"])


def go_on(loop: "Loop", last: "Loop") -> None:
    """Lets a loop go on where the last one of its trainer came to its end.

    What is asked for now is not what was stopped then.
    """
    state = {**capture(last), "stopped": None}
    ended = before_end(loop, state, loop.trainer.step)
    ended = ended or {"logs": last.reports.logs, "callbacks": {}}
    # One of another class may have the same name.
    with contextlib.suppress(Misfit):
        loop.callbacks.load_states(last.callbacks.states() | ended["callbacks"])
    restore(loop, state)
    loop.reports.logs = dict(ended["logs"])
    if loop.evaluate and loop.steps <= loop.trainer.step:
        # Whoever calls again wants to know what is so now.
        loop.reports.forget_evaluation()
    loop.reports.load_times(last.reports.times())
    for name, totals in last.reports.totals.items():
        loop.reports.totals[name].load_state(totals.state())


def _restore_stop(loop: "Loop", stopped: Mapping[str, Any] | None) -> None:
    """A run that was stopped stays so, unless something else is asked."""
    trainer = loop.trainer
    trainer.model.stop_training = False
    if stopped is None:
        return
    why = stopped["reason"] or "a callback set stop_training"
    if _stays_stopped(loop, stopped):
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


def _stays_stopped(loop: "Loop", stopped: Mapping[str, Any]) -> bool:
    return all(stopped[name] == value for name, value in _asked(loop).items())


def _asked(loop: "Loop") -> dict[str, Any]:
    configuration = loop.trainer.plugin.facts.get("configuration")
    return {"steps": loop.steps, "configuration": configuration}

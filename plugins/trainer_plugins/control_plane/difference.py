"""Compares what must be equal in all tasks, over their lifelines."""

from collections.abc import Mapping
from typing import Any

from trainer import UserError
from trainer_plugins.control_plane.channel import Lifeline
from trainer_plugins.control_plane.rendezvous_errors import difference


def compare(
    lifeline: Lifeline, facts: Mapping[str, Any], *, seconds: float
) -> None:
    """Returns when all tasks have come here with the same facts.

    The first task compares and tells the others, so that all say the same.

    Args:
        lifeline: joins the tasks; all of them call this equally often.
        facts: JSON values by name.
        seconds: how long to wait for the others.

    Raises:
        UserError: the facts differ; the message says on whom.
        StartAgain: a task is lost or did not come in time; it is named.
    """
    if lifeline.name == lifeline.first:
        found = {lifeline.name: dict(facts)}
        for name in lifeline.others:
            found[name] = lifeline.hear(name, seconds)["facts"]
        problem = difference(
            {
                lifeline.cluster.given_name(name): {"tasks": {}, "facts": own}
                for name, own in found.items()
            }
        )
        lifeline.tell({"problem": problem})
    else:
        lifeline.tell({"facts": dict(facts)})
        problem = lifeline.hear(lifeline.first, seconds)["problem"]
    if problem:
        raise UserError(problem)

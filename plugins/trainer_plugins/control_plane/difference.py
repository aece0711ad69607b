"""Compares facts that must be equal in all tasks, over the channel."""

from collections.abc import Mapping
from typing import Any

from trainer import UserError
from trainer_plugins.control_plane.channel import Channel
from trainer_plugins.control_plane.rendezvous_errors import difference


def compare(
    channel: Channel, facts: Mapping[str, Any], *, seconds: float
) -> None:
    """A barrier that all tasks must reach with the same facts.

    The first task compares and broadcasts the outcome, so that all tasks
    report the same difference.

    Args:
        channel: connects the tasks; all of them call this equally often.
        facts: JSON values by name.
        seconds: how long to wait for the others.

    Raises:
        UserError: the facts differ; the message says on which tasks.
        StartAgain: a task is lost or did not come in time; it is named.
    """
    if channel.name == channel.first:
        found = {channel.name: dict(facts)}
        for name in channel.others:
            found[name] = channel.receive(name, seconds)["facts"]
        # The rendezvous has compared the tasks already, so `tasks` is empty.
        # The first task comes first: the others are compared with it.
        problem = difference(
            {
                channel.cluster.given_name(name): {"tasks": {}, "facts": own}
                for name, own in found.items()
            }
        )
        channel.broadcast({"problem": problem})
    else:
        channel.broadcast({"facts": dict(facts)})
        problem = channel.receive(channel.first, seconds)["problem"]
    if problem:
        raise UserError(problem)

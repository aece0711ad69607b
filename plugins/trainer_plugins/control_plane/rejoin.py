"""Detects a lost or absent task that has come back to rejoin the run."""

import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from absl import logging

from trainer.plugin_api import JOBS, Cluster
from trainer_plugins.control_plane.channel import Channel
from trainer_plugins.control_plane.rendezvous import (
    add_to_run,
    connect_to_waiting,
)

# Much less than the time for which a waiting task assumes that the run goes on,
# see `Members.expect_a_run`.
_POLL_SECONDS = 3.0
# The run may be waiting for the task that comes back.
_FAST_POLL_SECONDS = 0.5


def wait_for_rejoin(
    channel: Channel,
    name: str,
    *,
    cluster: Cluster,
    facts: Mapping[str, Any],
) -> None:
    """Waits until a lost task has been restarted, and adds it to the run.

    Args:
        channel: gets the new connection; when it ends, so does the wait.
        name: the lost task.
        cluster: all tasks.
        facts: what must be equal everywhere, as in `meet`.
    """
    address = dict(cluster.tasks(*JOBS))[name]
    while channel.is_open and channel.end_reason is None:
        connection = connect_to_waiting(address, cluster=cluster)
        if connection is not None and add_to_run(
            connection, cluster=cluster, facts=facts
        ):
            logging.warning("%s (%s) is back.", name, address)
            channel.add(name, connection)
            return
        time.sleep(_FAST_POLL_SECONDS)


class RejoinWatcher:
    """Polls the addresses of absent tasks until one of them is back.

    Args:
        cluster: an elastic cluster that runs without some of its tasks.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._rejoined: str | None = None
        self._connection: socket.socket | None = None
        self._stop = threading.Event()
        threading.Thread(target=self._run, name="absent", daemon=True).start()

    @property
    def rejoined(self) -> str | None:
        """The task that is back, under its name in the given cluster."""
        return self._rejoined

    def close(self) -> None:
        """Stops polling, and releases the task that is back."""
        self._stop.set()
        if self._connection is not None:
            self._connection.close()

    def _run(self) -> None:
        while not self._stop.wait(_POLL_SECONDS):
            for name, address in self._cluster.absent():
                connection = connect_to_waiting(address, cluster=self._cluster)
                if connection is not None:
                    # As long as this is open, the task waits for this run to
                    # end, and does not form a second one with other tasks.
                    self._connection = connection
                    logging.info("%s is back.", name)
                    # Last: the main thread may call `close` as soon as it sees
                    # this.
                    self._rejoined = name
                    return

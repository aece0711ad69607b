"""Notices that a task which was left out waits to take part again."""

import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from absl import logging

from trainer.plugin_api import JOBS, Cluster
from trainer_plugins.control_plane.channel import Lifeline
from trainer_plugins.control_plane.rendezvous import admit, knock

_EVERY_SECONDS = 3.0
# A run may wait for the one that comes back.
_OFTEN_SECONDS = 0.5


def bring_back(
    lifeline: Lifeline,
    name: str,
    *,
    cluster: Cluster,
    facts: Mapping[str, Any],
) -> None:
    """Waits until a lost task was started again, and takes it in.

    Args:
        lifeline: gets the new line to it; when it is over so is the wait.
        name: that task.
        cluster: all tasks.
        facts: what must be equal everywhere, as in `meet`.
    """
    address = dict(cluster.tasks(*JOBS))[name]
    while lifeline.is_open and lifeline.over is None:
        line = knock(address, cluster=cluster)
        if line is not None and admit(line, cluster=cluster, facts=facts):
            logging.warning("%s (%s) is back.", name, address)
            lifeline.add(name, line)
            return
        time.sleep(_OFTEN_SECONDS)


class Returning:
    """Asks at the addresses of absent tasks, until one is back.

    Args:
        cluster: an elastic cluster that runs without some of its tasks.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._back: str | None = None
        self._line: socket.socket | None = None
        self._stop = threading.Event()
        threading.Thread(target=self._run, name="absent", daemon=True).start()

    @property
    def back(self) -> str | None:
        """The task that is back, as the given cluster names it."""
        return self._back

    def close(self) -> None:
        """Stops asking, and lets the one that is back go its way."""
        self._stop.set()
        if self._line is not None:
            self._line.close()

    def _run(self) -> None:
        while not self._stop.wait(_EVERY_SECONDS):
            for name, address in self._cluster.absent():
                line = knock(address, cluster=self._cluster)
                if line is not None:
                    # While it is open, the task begins nothing of its own.
                    self._line = line
                    logging.info("%s is back.", name)
                    self._back = name
                    return

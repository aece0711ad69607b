"""A worker or parameter server: it serves, and leaves once the run has saved.

SIGTERM usually reaches all tasks of a job at once. The chief still needs its
workers to finish the current steps, and the parameter servers to read the
variables that it saves.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence

import tensorflow as tf
from absl import logging

from trainer.plugin_api import Cluster, signals
from trainer_plugins.control_plane.agent import Agent
from trainer_plugins.strategies.processes import server_def_resolver

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# A preempted VM has 30 s from SIGTERM on.
_SAVING_SECONDS = 25.0
# Longer than one graph call, see `Loop.loop_seconds`.
_WORKING_SECONDS = 20.0


def start_server(
    cluster: Cluster, jobs: Sequence[str], *, threads: int
) -> tf.distribute.Server:
    """Starts the TensorFlow server of a worker or parameter server."""
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=threads)
    return tf.distribute.Server(
        server_def_resolver(cluster, jobs).cluster_spec(),
        job_name=cluster.job,
        task_index=cluster.index,
        protocol="grpc",
        config=config,
    )


@contextlib.contextmanager
def departing(agent: Agent, *, holds_state: bool) -> Iterator[None]:
    """Serves a little longer after SIGTERM or SIGINT, then ends with 75.

    A second SIGINT ends the process at once. A second SIGTERM does not: a job
    manager may send one to a task and one to its launcher, which forwards it.

    Args:
        agent: the serving ends when its `wait` does.
        holds_state: whether the run cannot continue without this task. If
            so, it requests that the run save and leave as well. A worker
            merely leaves, after some seconds for its current steps.
    """
    seconds = _SAVING_SECONDS if holds_state else _WORKING_SECONDS

    def depart(number: int) -> None:
        name = signal.Signals(number).name
        reason = f"{agent.label(agent.name)}: {name}"
        logging.warning("%s: leaving within %g s.", name, seconds)
        if holds_state:
            agent.preempt(reason)
        timer = threading.Timer(seconds, agent.end, (reason,))
        # It must not keep a process alive that ends earlier.
        timer.daemon = True
        timer.start()

    def ignore_repeats(number: int) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    # On a thread of its own: a handler would run in the middle of the main
    # thread's code, which may hold a lock that the agent needs.
    listener = signals.Listener(_SIGNALS, depart, in_main=ignore_repeats)
    listener.start()
    try:
        yield
    finally:
        listener.stop()

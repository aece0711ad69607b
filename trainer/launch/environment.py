"""Finds out which task of an existing cluster this host runs, if any.

The launcher only needs to know whether there is a cluster, and a name for the
log file. The task itself reads the cluster and checks it.
"""

import json
import re
import socket
from collections.abc import Mapping

_WORD = re.compile(r"\w+")
_TRAILING_NUMBER = re.compile(r"-(\d+)$")


def find_task(
    flags: Mapping[str, str], environ: Mapping[str, str]
) -> tuple[str, int] | None:
    """Looks where `python -m trainer` does, in the same order.

    Args:
        flags: the cluster flags that were given, such as
            `{"task_index": "1"}`.
        environ: the environment.

    Returns:
        Job and index, such as `("worker", 1)`; the job is `"task"` where
        only an index among equal tasks is known. `None` outside a cluster.
    """
    if flags:
        # The same defaults as in `trainer.strategy.cluster.flags`.
        return flags.get("task_type", "worker"), _number(
            flags.get("task_index", "0")
        )
    return _tf_config(environ) or _slurm(environ) or _kubernetes(environ)


def _tf_config(environ: Mapping[str, str]) -> tuple[str, int] | None:
    text = environ.get("TF_CONFIG", "").strip()
    if not text:
        return None
    try:
        config = json.loads(text)
    except ValueError:
        # The task itself reports what is wrong with it.
        return "task", 0
    if not isinstance(config, dict) or not config.get("task"):
        return None
    task = config["task"]
    if not isinstance(task, dict):
        return "task", 0
    job = str(task.get("type", ""))
    # The job becomes part of the log file's name.
    if not _WORD.fullmatch(job):
        job = "task"
    return job, _number(str(task.get("index", 0)))


def _slurm(environ: Mapping[str, str]) -> tuple[str, int] | None:
    """One of several tasks of a step; a batch script is not one of them."""
    if environ.get("SLURM_STEP_NUM_TASKS", "1") in ("", "0", "1"):
        return None
    rank = environ.get("SLURM_PROCID")
    return None if rank is None else ("task", _number(rank))


def _kubernetes(environ: Mapping[str, str]) -> tuple[str, int] | None:
    """A pod of a StatefulSet or an indexed Job."""
    if "KUBERNETES_SERVICE_HOST" not in environ:
        return None
    # Kubernetes sets the variable above in every pod; it does not tell whether
    # the pods form a cluster.
    if not environ.get("TRAINER_NUM_WORKERS"):
        return None
    host = environ.get("HOSTNAME") or socket.gethostname()
    match = _TRAILING_NUMBER.search(host.split(".")[0])
    return "task", int(match[1]) if match else 0


def _number(text: str) -> int:
    # The task itself reports an invalid index.
    return int(text) if text.isdecimal() else 0

"""One task of a rendezvous, as a process: `rendezvous_task.py JSON`."""

import json
import sys
import time

from trainer import StartAgain, UserError
from trainer.strategy.cluster.spec import Cluster
from trainer_plugins.control_plane.rendezvous import meet


def main():
    given = json.loads(sys.argv[1])
    cluster = Cluster(given["jobs"], given["job"], given["index"], "test")
    if given.get("gate"):
        # All imports are done: from here to the rendezvous takes no time.
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.readline()
    start = time.monotonic()
    try:
        met = meet(
            cluster,
            jobs=given.get("meeting", ["chief", "worker", "ps"]),
            facts=given.get("facts", {}),
            timeout_seconds=given.get("timeout", 20),
            min_workers=given.get("min_workers"),
            settle_seconds=given.get("settle", 1.0),
            silence_seconds=given.get("silence", 15.0),
        )
        code, text = 0, describe(met)
    except StartAgain as error:
        code, text = 75, str(error)
    except UserError as error:
        code, text = 2, str(error)
    if code == 0 and given.get("then") == "tensorflow":
        text = start_server(met.cluster)
    result = [code, text, time.monotonic() - start]
    sys.stdout.write(f"{json.dumps(result)}\n")
    sys.exit(code)


def describe(met):
    """How it ended, in a word; the remaining cluster if tasks are missing."""
    if met.connection is not None:
        # The running job reads this over the same connection.
        met.connection.sendall(b"hello\n")
        return "admitted"
    if met.cluster.origin is None:
        return "met"
    return [met.cluster.name, met.cluster.jobs]


def start_server(cluster):
    """Starts TensorFlow's server on the port that is free again."""
    import tensorflow as tf

    server = tf.distribute.Server(
        tf.train.ClusterSpec(cluster.jobs),
        job_name=cluster.job,
        task_index=cluster.index,
        protocol="grpc",
    )
    return server.target


if __name__ == "__main__":
    main()

"""One task of a meeting, as a process: `meeting_task.py JSON`."""

import json
import sys
import time

from plugins.clusters.cluster import Cluster
from plugins.clusters.rendezvous import meet
from trainer import StartAgain, UserError


def main():
    given = json.loads(sys.argv[1])
    cluster = Cluster(given["jobs"], given["job"], given["index"], "test")
    start = time.monotonic()
    try:
        meet(
            cluster,
            jobs=given.get("meeting", ["chief", "worker", "ps"]),
            facts=given.get("facts", {}),
            timeout_seconds=given.get("timeout", 20),
        )
        code, text = 0, "met"
    except StartAgain as error:
        code, text = 75, str(error)
    except UserError as error:
        code, text = 2, str(error)
    if code == 0 and given.get("then") == "tensorflow":
        text = start_server(cluster)
    result = [code, text, time.monotonic() - start]
    sys.stdout.write(f"{json.dumps(result)}\n")
    sys.exit(code)


def start_server(cluster):
    """Lets TensorFlow take the port over, and all tasks talk once more."""
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

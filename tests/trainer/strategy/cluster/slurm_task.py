"""A task of srun: prints the cluster that it finds and meets the others."""

import json
import os
import sys

from trainer import StartAgain
from trainer.strategy.cluster.resolve import resolve_cluster
from trainer_plugins.control_plane.rendezvous import meet


def main():
    cluster = resolve_cluster(ps="--ps" in sys.argv)
    if cluster is None:
        sys.stdout.write("null\n")
        return
    if os.environ.get("TASK_THAT_STAYS_AWAY") == cluster.name:
        return
    facts = {"python": sys.version}
    jobs = ["chief", "worker", "ps"]
    try:
        meet(cluster, jobs=jobs, facts=facts, timeout_seconds=5)
        met = "met"
    except StartAgain as error:
        met = str(error)
    # One write: srun mixes the lines of its tasks.
    sys.stdout.write(json.dumps([cluster.describe(), met]) + "\n")


if __name__ == "__main__":
    main()

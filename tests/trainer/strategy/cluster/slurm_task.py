"""A task of srun: prints the cluster that it finds and meets the others."""

import json
import os
import sys

from trainer import StartAgain
from trainer.strategy.cluster.resolve import resolve_cluster
from trainer_plugins.control_plane.agent import Agent
from trainer_plugins.control_plane.options import Options


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
        options = Options(start_seconds=5.0)
        agent = Agent(cluster, jobs=jobs, facts=facts, options=options)
        agent.barrier({}, seconds=20.0)
        agent.leave()
        met = "met"
    except StartAgain as error:
        met = str(error)
    # One write: srun mixes the lines of its tasks.
    sys.stdout.write(json.dumps([cluster.describe(), met]) + "\n")


if __name__ == "__main__":
    main()

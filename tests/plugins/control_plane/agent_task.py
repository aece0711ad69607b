"""One task of a cluster, as a process: `agent_task.py JSON`.

It joins, prints a line with the outcome, and then carries out the commands
that it reads, one JSON list a line: the name of a function below and its
arguments. Each answer is a line as well.
"""

import json
import sys
import time

from trainer import StartAgain, UserError
from trainer.plugin_api import Cluster
from trainer_plugins.control_plane.agent import Agent
from trainer_plugins.control_plane.options import Options

CODES = {StartAgain: 75, UserError: 2, ValueError: 1}


def say(*answer):
    sys.stdout.write(f"{json.dumps(answer)}\n")
    sys.stdout.flush()


def state(agent):
    return [agent.end_reason, agent.preempt_reason, agent.losses]


def wait(agent):
    agent.wait()


def reason(agent):
    return agent.why_failed()


def barrier(agent, facts, seconds):
    agent.barrier(facts, seconds=seconds)


def watched(agent, limit, seconds):
    """Waits as if inside TensorFlow, which cannot be interrupted."""
    with agent.waiting(limit):
        time.sleep(seconds)


def leave(agent, text=None):
    agent.leave(None if text is None else ValueError(text))


def main():
    given = json.loads(sys.argv[1])
    cluster = Cluster(given["jobs"], given["job"], given["index"], "test")
    since = time.monotonic()
    try:
        agent = Agent(
            cluster,
            jobs=["chief", "worker", "ps"],
            facts=given["facts"],
            options=Options(**given["options"]),
        )
    except (StartAgain, UserError) as error:
        say(CODES[type(error)], str(error), time.monotonic() - since)
        sys.exit(CODES[type(error)])
    say(0, [agent.cluster.name, agent.cluster.jobs], time.monotonic() - since)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            say(0, globals()[name](agent, *arguments), 0.0)
        except (StartAgain, UserError) as error:
            say(CODES[type(error)], str(error), 0.0)
            agent.leave(error)
            sys.exit(CODES[type(error)])
    agent.leave()


if __name__ == "__main__":
    main()

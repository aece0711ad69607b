"""Launches Python programs that are given as JSON."""

import functools
import json
import os
import signal
import sys

from trainer.launch.agent import Agent
from trainer.launch.policy import Limits
from trainer.launch.task import Task
from trainer.runtime import standard_streams
from trainer.runtime.run_paths import newest_step


def main():
    # As `python -m trainer.launch` does.
    standard_streams.protect()
    # A shell starts its background jobs with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    given = json.loads(sys.argv[1])
    os.makedirs(given["log_dir"], exist_ok=True)
    over = os.path.join(given["log_dir"], "over")
    tasks = [
        Task(
            job,
            index,
            (sys.executable, "-c", program),
            environ={},
            log_dir=given["log_dir"],
        )
        for job, index, program in given["tasks"]
    ]
    limits = Limits(**{"max_restarts": 0, "end_seconds": 5, **given["limits"]})
    agent = Agent(
        tasks,
        limits=limits,
        run_is_over=lambda: os.path.exists(over),
        newest_step=functools.partial(newest_step, given["log_dir"]),
    )
    sys.exit(agent.run())


if __name__ == "__main__":
    main()

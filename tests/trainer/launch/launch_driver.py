"""Launches given Python programs: `launch_driver.py JSON`."""

import dataclasses
import json
import os
import signal
import sys

from trainer.launch.main import launch
from trainer.launch.policy import Limits
from trainer.launch.tasks import Task
from trainer.launch.timeouts import Patience


def main():
    # A shell's background jobs are started deaf to Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    given = json.loads(sys.argv[1])
    tasks = [
        Task(job, index, (sys.executable, "-c", program))
        for job, index, program in given["tasks"]
    ]
    os.makedirs(given["log_dir"], exist_ok=True)
    sys.exit(
        launch(
            tasks,
            log_dir=given["log_dir"],
            limits=Limits(given.get("max_restarts", 0)),
            patience=_patience(given),
        )
    )


def _patience(given):
    seconds = {"end_seconds": 5}
    for field in dataclasses.fields(Patience):
        if field.name in given:
            seconds[field.name] = given[field.name]
    return Patience(**seconds)


if __name__ == "__main__":
    main()

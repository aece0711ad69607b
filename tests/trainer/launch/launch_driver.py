"""Launches Python programs that are given as JSON."""

import dataclasses
import json
import os
import signal
import sys

from trainer.launch.main import launch
from trainer.launch.policy import Limits
from trainer.launch.task_spec import TaskSpec
from trainer.launch.timeouts import Timeouts


def main():
    # A shell starts its background jobs with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    given = json.loads(sys.argv[1])
    tasks = [
        TaskSpec(job, index, (sys.executable, "-c", program))
        for job, index, program in given["tasks"]
    ]
    os.makedirs(given["log_dir"], exist_ok=True)
    sys.exit(
        launch(
            tasks,
            log_dir=given["log_dir"],
            limits=Limits(given.get("max_restarts", 0)),
            timeouts=_timeouts(given),
        )
    )


def _timeouts(given):
    seconds = {"end_seconds": 5}
    for field in dataclasses.fields(Timeouts):
        if field.name in given:
            seconds[field.name] = given[field.name]
    return Timeouts(**seconds)


if __name__ == "__main__":
    main()

"""Launches given Python programs: `launch_driver.py JSON`."""

import json
import os
import signal
import sys

from trainer.launch import launch
from trainer.launcher.supervisor import Limits
from trainer.launcher.tasks import Task


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
            min_workers=given.get("min_workers"),
            model_dir=given.get("model_dir"),
            end_seconds=given.get("end_seconds", 5),
            leave_seconds=given.get("leave_seconds"),
            left_behind_seconds=given.get("left_behind_seconds", 30),
        )
    )


if __name__ == "__main__":
    main()

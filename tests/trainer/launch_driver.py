"""Launches given Python programs: `launch_driver.py JSON`."""

import json
import os
import sys

from trainer.launch import launch
from trainer.launcher.tasks import Task


def main():
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
            end_seconds=given.get("end_seconds", 5),
            leave_seconds=given.get("leave_seconds"),
        )
    )


if __name__ == "__main__":
    main()

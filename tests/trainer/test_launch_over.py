"""When a run is done, and what the tasks may still do then."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.trainer.launching import AWAIT, LIFE, is_gone, lives, pid_of
from trainer import launch as launch_module
from trainer.launcher import arguments

# Ends well as soon as worker 1 is in its second life.
UNTIL = LIFE + (
    "other = path.replace('worker_0', 'worker_1')\n"
    "while not os.path.exists(other) or os.path.getsize(other) < 2:\n"
    "    time.sleep(0.02)\n"
)
SOON = {"server": 0.5, "chief": 0.5, "worker": 0.5, "evaluator": 0.5}
NO_CORE = "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"


def test_who_is_back_too_late_is_no_failure(launch):
    """It was killed in the last seconds, and waits for who has ended."""
    one = launch(
        ("worker", 0, UNTIL),
        ("worker", 1, LIFE + "if life == 1: kill()\n" + AWAIT),
        max_restarts=3,
        leave_seconds=SOON,
    )
    code, out, err = one.result()
    assert code == 0, err
    assert "Done. 1 restart: worker 1 once." in out
    assert is_gone(pid_of(one.log("worker_1").split("life=2")[1]))


def test_an_elastic_worker_that_is_late_is_no_failure(launch):
    one = launch(
        ("worker", 0, LIFE),
        ("worker", 1, LIFE + AWAIT),
        max_restarts=3,
        min_workers=1,
        leave_seconds=SOON,
    )
    code, _, err = one.result()
    assert code == 0, err


@pytest.mark.parametrize("how", ["SIGSTOP", "SIGKILL"])
def test_enough_elastic_workers_may_end_without_the_first(launch, how):
    first = LIFE + f"if life == 1: kill(signal.{how})\n" + AWAIT
    other = LIFE + "time.sleep(0.5)"
    one = launch(
        ("worker", 0, first),
        ("worker", 1, other),
        ("worker", 2, other),
        max_restarts=3,
        min_workers=2,
        leave_seconds=SOON,
        stopped_seconds=0.2,
    )
    code, _, err = one.result()
    assert code == 0, err
    assert (lives(one, "worker_1"), lives(one, "worker_2")) == (1, 1)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("sys.exit(75)", 0),
        ("kill()", 0),
        (NO_CORE + "kill(signal.SIGSEGV)", 0),
        ("fail('no', 40)", 1),
    ],
)
def test_only_an_error_counts_after_the_end(launch, program, expected):
    one = launch(
        ("worker", 0, LIFE),
        ("worker", 1, LIFE + "time.sleep(0.7)\n" + program),
        max_restarts=3,
    )
    code, _, err = one.result()
    assert code == expected, err
    assert lives(one, "worker_1") == 1


def record(folder, reason, end):
    text = json.dumps({"exit_reason": reason, "end": end})
    (folder / "run.json").write_text(text)
    return f"open({str(folder / 'run.json')!r}, 'w').write"


@pytest.mark.parametrize("before", ["running", "done"])
def test_the_record_of_the_run_tells_a_host_that_it_is_over(
    launch, tmp_path, before
):
    """The chief runs on another host; this task finds nobody any more."""
    write = record(tmp_path, before, "yesterday")
    done = '{"exit_reason": "done", "end": "now"}'
    program = LIFE + f"if life == 2: {write}({done!r})\nsys.exit(75)"
    one = launch(
        ("worker", 1, program), max_restarts=3, model_dir=str(tmp_path)
    )
    code, _, err = one.result()
    assert code == 0, err
    # An older record says nothing: the run may be about to go on.
    assert lives(one, "worker_1") == 2


def test_only_who_trains_believes_the_record(tmp_path):
    def tells(*flags):
        given = ["--gin_file=x.gin", f"--model_dir={tmp_path}", *flags]
        request = arguments.parse(["--num_workers=1", "--", *given])
        is_over = launch_module._record(request)
        record(tmp_path, "done", str(flags))
        return is_over()

    assert tells()
    assert not tells("--mode=continuous_eval")


def test_the_record_is_read_without_tensorflow(tmp_path):
    record(tmp_path, "done", "now")
    program = (
        "import sys; from trainer.cli.run_over import RunIsOver; "
        f"assert RunIsOver({str(tmp_path)!r}, start_seconds=0)(); "
        "assert 'tensorflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_signal_that_comes_with_the_good_end_changes_nothing(launch):
    finishing = LIFE + (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('ready', flush=True)\n"
        "time.sleep(1.5)\n"
    )
    one = launch(
        ("worker", 0, finishing), ("worker", 1, finishing), max_restarts=3
    )
    for name in ("worker_0", "worker_1"):
        one.wait_for(name, "ready")
    os.kill(one.process.pid, signal.SIGTERM)
    assert one.result()[0] == 0

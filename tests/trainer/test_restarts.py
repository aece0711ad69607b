"""What `launch` does when tasks end: real processes, real signals."""

import os
import signal
import time

import pytest

from tests.trainer.launching import (
    AWAIT,
    LIFE,
    finish,
    is_gone,
    lives,
    pid_of,
)


def test_a_killed_task_is_started_again_alone(launch):
    one = launch(
        ("worker", 0, LIFE + AWAIT),
        ("worker", 1, LIFE + AWAIT),
        max_restarts=3,
    )
    for name in ("worker_0", "worker_1"):
        one.wait_for(name, "life=1")
    os.kill(pid_of(one.log("worker_1")), signal.SIGKILL)
    one.wait_for("worker_1", "life=2")
    code, out, err = finish(one)
    assert code == 0
    assert (lives(one, "worker_0"), lives(one, "worker_1")) == (1, 2)
    assert err == (
        "worker 1 was ended by SIGKILL. It is started again (restart 1 of at "
        "most 3 in 3600 s).\n"
    )
    assert out.splitlines()[-1] == "Done. 1 restart: worker 1 once."


def test_the_chief_is_shown_over_all_its_lives(launch):
    one = launch(
        ("worker", 0, LIFE + "if life == 1: sys.exit(75)"), max_restarts=1
    )
    code, out, err = one.result()
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[:2]] == [
        "life=1",
        "life=2",
    ]
    assert "worker 0 asks to be started again (exit code 75)" in err


def test_who_lost_a_peer_by_it_is_started_again_for_nothing(launch):
    # It sees its peer's next life, as one sees a broken connection.
    peer = LIFE + (
        "other = path.replace('worker_0', 'worker_1')\n"
        "while life < 3 and not (os.path.exists(other) and "
        "os.path.getsize(other) > life):\n"
        "    time.sleep(0.02)\n"
        "if life < 3: sys.exit(75)\n" + AWAIT
    )
    killed = LIFE + "if life < 3: time.sleep(0.5); kill()\n" + AWAIT
    one = launch(("worker", 0, peer), ("worker", 1, killed), max_restarts=2)
    for name in ("worker_0", "worker_1"):
        one.wait_for(name, "life=3")
    code, out, err = finish(one)
    assert code == 0, err
    assert err.count("worker 0 asks") == 2
    assert err.count("this does not count") == 2
    assert "4 restarts: worker 0 2 times, worker 1 2 times." in out


def test_the_same_failure_at_the_same_step_is_not_tried_a_third_time(launch):
    program = LIFE + "fail('no', 40)"
    one = launch(
        ("worker", 0, LIFE + AWAIT), ("worker", 1, program), max_restarts=9
    )
    code, _, err = one.result()
    assert code == 1
    assert lives(one, "worker_1") == 2
    assert (
        "worker 1 failed with exit code 1: ValueError: no at step 40. It is "
        "started again" in err
    )
    assert (
        "worker 1 failed with exit code 1. The same ValueError: no at step 40 "
        "twice: a defect, not bad luck. The end of " in err
    )
    assert is_gone(pid_of(one.log("worker_0")))


def test_another_failure_or_step_goes_on_until_the_limit(launch):
    one = launch(("worker", 0, LIFE + "fail('no', life)"), max_restarts=2)
    code, _, err = one.result()
    assert code == 1
    assert lives(one, "worker_0") == 3
    assert "as often as --max_restarts=2 allows" in err
    assert "defect" not in err


@pytest.mark.parametrize("more", [0, 1])
def test_a_crash_is_judged_by_the_newest_checkpoint(launch, tmp_path, more):
    """Progress between two crashes is read from the run directory."""
    (tmp_path / "checkpoints" / "step_00000010").mkdir(parents=True)
    (tmp_path / "checkpoints" / "tmp_0").mkdir()
    program = (
        f"folder = {str(tmp_path / 'checkpoints')!r}\n"
        f"os.makedirs(f'{{folder}}/step_{{10 + {more} * life:08}}', "
        "exist_ok=True)\n"
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        "kill(signal.SIGSEGV)"
    )
    one = launch(
        ("worker", 0, LIFE + program), max_restarts=2, model_dir=str(tmp_path)
    )
    code, _, err = one.result()
    assert code == 139
    assert lives(one, "worker_0") == (3 if more else 2)
    if not more:
        assert "The same SIGSEGV after step_00000010 twice" in err


def test_crashes_at_unknown_places_are_no_defect(launch):
    """The launcher cannot list the checkpoints of a remote directory."""
    program = (
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        "if life < 3: kill(signal.SIGSEGV)"
    )
    one = launch(("worker", 0, LIFE + program), max_restarts=2)
    code, _, err = one.result()
    assert code == 0, err
    assert lives(one, "worker_0") == 3


def test_a_users_mistake_ends_all_at_once(launch):
    one = launch(
        ("worker", 0, LIFE + AWAIT),
        ("worker", 1, LIFE + "sys.exit(2)"),
        max_restarts=9,
    )
    assert one.result()[0] == 2
    assert lives(one, "worker_1") == 1


def test_who_is_over_the_limit_ends_all(launch):
    one = launch(
        ("worker", 0, LIFE + AWAIT),
        ("worker", 1, LIFE + "kill()"),
        max_restarts=2,
    )
    code, out, err = one.result()
    assert code == 137
    assert lives(one, "worker_1") == 3
    assert "It was started again 2 times within 3600 s" in err
    assert "Done" not in out
    assert is_gone(pid_of(one.log("worker_0")))


def test_later_restarts_wait(launch):
    one = launch(
        ("worker", 0, LIFE + "print(f'at={time.time()} ')\nsys.exit(75)"),
        max_restarts=3,
    )
    assert one.result()[0] == 75
    log = one.log("worker_0")
    at = [float(part.split()[0]) for part in log.split("at=")[1:]]
    gaps = [b - a for a, b in zip(at, at[1:], strict=False)]
    # Each life and the launcher's clock take a little on top.
    assert gaps[1] >= 1.0
    assert gaps[2] >= 2.0


def test_sigterm_during_the_wait_starts_nothing(launch):
    one = launch(("worker", 0, LIFE + "sys.exit(75)"), max_restarts=20)
    for _ in range(4):
        one.process.stderr.readline()
    # The fourth end is followed by four seconds of waiting.
    one.process.send_signal(signal.SIGTERM)
    start = time.monotonic()
    code, _, err = one.result()
    assert time.monotonic() - start < 3
    assert code == 75
    assert lives(one, "worker_0") == 4
    assert "SIGTERM: ending all processes" in err


def test_what_ends_after_sigterm_is_not_started_again(launch):
    one = launch(
        ("worker", 0, LIFE + AWAIT),
        ("worker", 1, LIFE + AWAIT),
        max_restarts=3,
    )
    for name in ("worker_0", "worker_1"):
        one.wait_for(name, "life=1")
    one.process.send_signal(signal.SIGTERM)
    assert one.result()[0] == 143
    assert (lives(one, "worker_0"), lives(one, "worker_1")) == (1, 1)

"""Elastic clusters: fewer workers than given, as long as task 0 is there."""

from tests.plugins.control_plane.tasks import until

# Longer than a busy machine takes to start a task.
LONG = 60.0


def elastic(least, settle=1.0, start=LONG):
    return {
        "min_workers": least,
        "settle_seconds": settle,
        "start_seconds": start,
    }


def test_the_tasks_that_are_present_form_a_cluster(cluster):
    group = cluster(4, options=elastic(2, 3.0))
    tasks = group.start_workers(3, 0, 2)
    jobs = {"worker": [group.jobs["worker"][i] for i in (0, 2, 3)]}
    for task, rank in zip(tasks, (2, 0, 1), strict=True):
        assert task.started() == [f"worker {rank}", jobs]
    tasks[1].kill()
    for task in (tasks[0], tasks[2]):
        _, text = task.call("wait")
        assert text == f"lost {group.label('worker 0')}"


def test_enough_wait_for_the_first_task_all_the_same(cluster):
    group = cluster(3, options=elastic(1, 0.1, 3.0))
    for task in group.start_workers(1, 2):
        code, text, _ = task.answer()
        assert code == 75
        first = group.label("worker 0")
        assert text.startswith(f"peers missing after 3 s: {first} (")


def test_too_few_are_not_enough_and_the_missing_are_named(cluster):
    group = cluster(4, options=elastic(3, 0.1, 4.0))
    for task in group.start_workers(0, 3):
        code, text, _ = task.answer()
        assert code == 75
        missing = ", ".join(group.label(f"worker {i}") for i in (1, 2))
        assert text.startswith(f"peers missing after 4 s: {missing}")


def test_a_run_ends_for_one_that_is_back_and_starts_with_all(cluster):
    group = cluster(3, options=elastic(2, 8.0, 20.0))
    tasks = group.start_workers(0, 2)
    for task in tasks:
        task.started()
    (back,) = group.start_workers(1)
    for task in tasks:
        until(lambda t=task: t.call("state")[1][1] == "worker 1 is back")
    # They save, say, and leave in order.
    for task in tasks:
        task.send("barrier", {}, 20.0)
    for task in tasks:
        assert task.answer()[:2] == [0, None]
        assert task.close() == 0
    for task in (*group.start_workers(0, 2), back):
        _, jobs = task.started()
        assert jobs == group.jobs

"""The roles of tasks in a cluster: which of them a run cannot do without."""

from collections.abc import Sequence

from trainer.launch.managed_task import ManagedTask


def takes_part(task: ManagedTask) -> bool:
    """Whether the run needs the task; an evaluator only reads checkpoints."""
    return task.spec.job != "evaluator"


def serves_chief(task: ManagedTask, tasks: Sequence[ManagedTask]) -> bool:
    """Whether it only serves a chief and does not decide the outcome.

    Args:
        task: one of the tasks.
        tasks: all of them, the chief first.
    """
    # Without a chief, the workers run the training themselves, so that the end
    # of any of them decides.
    job = task.spec.job
    return job == "ps" or (job == "worker" and tasks[0].spec.job == "chief")


def is_spare(task: ManagedTask, tasks: Sequence[ManagedTask]) -> bool:
    """Whether the run goes on without it, so that it may leave alone.

    Args:
        task: see `serves_chief`.
        tasks: see `serves_chief`.
    """
    return serves_chief(task, tasks) and task.spec.job != "ps"

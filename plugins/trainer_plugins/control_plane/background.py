"""Work in the background of the event loop."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from absl import logging

from trainer_plugins.control_plane import timeouts


def start(
    *works: Coroutine[Any, Any, None], on_defect: Callable[[Exception], None]
) -> list["asyncio.Task[None]"]:
    """Starts coroutines that run until they are cancelled.

    Args:
        *works: the coroutines.
        on_defect: called with what one of them raises, which is a defect of
            ours that no one would notice otherwise.

    Returns:
        The tasks, for the caller to keep: asyncio itself keeps no reference.
    """

    def check(task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            logging.error("The control plane failed.", exc_info=error)
            on_defect(error)

    tasks = [asyncio.create_task(work) for work in works]
    for task in tasks:
        task.add_done_callback(check)
    return tasks


async def beats() -> AsyncIterator[float]:
    """Yields at each heartbeat the seconds since the one before."""
    before = time.monotonic()
    while True:
        await asyncio.sleep(timeouts.HEARTBEAT_SECONDS)
        now = time.monotonic()
        yield now - before
        before = now

"""A list with separate contents in each thread."""

import threading
from typing import Any


class ThreadList(threading.local):
    """A list with separate contents in each thread.

    It has those methods of a list that Keras uses on `Layer._losses`.
    """

    # threading.local calls this once in every thread that uses the object.
    def __init__(self) -> None:
        self._items: list[Any] = []

    def __getitem__(self, index: Any) -> Any:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def append(self, item: Any) -> None:
        """Adds an item to this thread's list."""
        self._items.append(item)

    def extend(self, items: Any) -> None:
        """Adds items to this thread's list."""
        self._items.extend(items)

    def clear(self) -> None:
        """Empties this thread's list."""
        self._items.clear()

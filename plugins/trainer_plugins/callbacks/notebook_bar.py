"""A progress bar in a notebook, which replaces its own output."""

import html
import time
from typing import Any

# Seconds between two updates: each is a message to the browser.
_PAUSE = 0.25


class NotebookBar:
    """A bar with values beside it; used as `rich.progress.Progress` is.

    Args:
        total: the step at which training ends, if known.
        completed: the steps that are done.
    """

    def __init__(self, total: int | None, completed: int) -> None:
        # There is no IPython outside of notebooks.
        from IPython.display import display

        self._total = total
        self._completed = completed
        self._values = ""
        self._shown_at = time.monotonic()
        self._handle = display(self._content(), raw=True, display_id=True)

    def update(
        self,
        task: Any = None,
        *,
        completed: int | None = None,
        values: str | None = None,
    ) -> None:
        """Moves the bar, or shows other values."""
        if completed is not None:
            self._completed = completed
        if values is not None:
            self._values = values
        if time.monotonic() - self._shown_at >= _PAUSE:
            self._show()

    def stop(self) -> None:
        """Shows where the bar has ended."""
        self._show()

    def _show(self) -> None:
        self._shown_at = time.monotonic()
        self._handle.update(self._content(), raw=True)

    def _content(self) -> dict[str, str]:
        of = f"/{self._total}" if self._total else ""
        text = f"train {self._completed}{of}  {self._values}"
        limit = f' max="{self._total}"' if self._total else ""
        bar = f'<progress value="{self._completed}"{limit}></progress>'
        return {
            "text/plain": text,
            "text/html": f"<div>{bar} <code>{html.escape(text)}</code></div>",
        }

"""Polls a Cloud VM's metadata server for preemption and maintenance.

See https://cloud.google.com/compute/docs/metadata/predefined-metadata-keys:
`instance/preempted` and `instance/maintenance-event`.
"""

import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException

from absl import logging

_DEFAULT_HOST = "metadata.google.internal"
# The server refuses requests without this header.
_HEADERS = {"Metadata-Flavor": "Google"}
_TIMEOUT_SECONDS = 3.0
# After this many failures in a row, the server counts as absent.
_MOST_FAILURES = 3


class MetadataServer:
    """Polls a metadata server on a separate thread.

    Args:
        url: such as `"http://127.0.0.1:8080"`; `None` takes the host in the
            environment variable `GCE_METADATA_HOST`, or Google Cloud's.
        poll_seconds: the time between two requests.
        on_event: called on that thread, once for each change, with the event
            and whether the run must leave; if not, saving is enough.
    """

    def __init__(
        self,
        url: str | None,
        *,
        poll_seconds: float,
        on_event: Callable[[str, bool], None],
    ) -> None:
        host = os.environ.get("GCE_METADATA_HOST", _DEFAULT_HOST)
        self._url = (url or f"http://{host}").rstrip("/")
        self._is_given = url is not None
        self._poll_seconds = poll_seconds
        self._on_event = on_event
        self._stopped = threading.Event()
        # The server is link-local, and cannot be reached through a proxy.
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({})
        )

    def start(self) -> None:
        """Starts polling."""
        # A new one for each run: the last one's thread may still wait on the
        # old one.
        self._stopped = threading.Event()
        # A daemon: a request that hangs must not keep the process from ending.
        threading.Thread(
            target=self._run,
            args=(self._stopped,),
            name="metadata",
            daemon=True,
        ).start()

    def stop(self) -> None:
        """Stops polling."""
        self._stopped.set()

    def _run(self, stopped: threading.Event) -> None:
        last: dict[str, str] = {}
        failures = 0
        while not stopped.is_set():
            try:
                for key in ("preempted", "maintenance-event"):
                    value = self._get(key)
                    if value != last.get(key):
                        last[key] = value
                        self._handle(key, value)
                failures = 0
            except (OSError, ValueError, HTTPException) as error:
                failures += 1
                # A server that has answered once exists, and will answer again.
                if failures == _MOST_FAILURES and not last:
                    # Not being on Google Cloud is no reason to warn.
                    level = logging.WARNING if self._is_given else logging.DEBUG
                    logging.log(
                        level,
                        "The metadata server %s does not answer (%s).",
                        self._url,
                        error,
                    )
                    if not self._is_given:
                        return
            stopped.wait(self._poll_seconds)

    def _get(self, key: str) -> str:
        request = urllib.request.Request(
            f"{self._url}/computeMetadata/v1/instance/{key}", headers=_HEADERS
        )
        try:
            with self._opener.open(request, timeout=_TIMEOUT_SECONDS) as answer:
                # Values are a few words. Something else may answer, without
                # end.
                return str(answer.read(256).decode().strip().upper())
        except urllib.error.HTTPError as error:
            # Not every kind of VM has every key.
            if error.code == 404:
                return ""
            raise

    def _handle(self, key: str, value: str) -> None:
        # In full, the events are called TERMINATE_ON_HOST_MAINTENANCE and
        # MIGRATE_ON_HOST_MAINTENANCE.
        if key == "preempted" and value == "TRUE":
            self._on_event("the VM is preempted", True)
        elif value.startswith("TERMINATE"):
            self._on_event(f"the VM is going to end ({value})", True)
        elif value.startswith("MIGRATE"):
            self._on_event(f"the VM is going to move ({value})", False)

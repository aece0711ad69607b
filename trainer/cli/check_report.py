"""Prints what a check has found, and writes it to the run directory."""

import json
import os
from collections.abc import Sequence
from typing import Any

from absl import logging

from trainer.cli import provenance
from trainer.errors import UserError
from trainer.runtime import files, run_paths
from trainer.runtime.report import (
    Row,
    Section,
    as_json,
    not_finite,
    print_sections,
)
from trainer.runtime.run_paths import plain
from trainer.runtime.standard_streams import require_output

FILE_NAME = "check.json"


def report_of_check(
    sections: Sequence[Section], unused: list[str], model_dir: str | None
) -> None:
    """Prints the report of a run that would start, and writes it.

    Args:
        sections: what was found.
        unused: bindings without an effect.
        model_dir: the run directory if one was named; it gets `check.json`,
            and nothing else.
    """
    rows = [Row("unused bindings", len(unused)), Row("would start", True)]
    notes = [*unused, *not_finite(sections)]
    found = [*sections, Section("verdict", rows, notes=notes)]
    print_sections(found)
    require_output()
    if model_dir is not None:
        _write(model_dir, {"would_start": True, **as_json(found)})


def note_failure(why: str, model_dir: str | None) -> None:
    """Records that the run would not start, if a run directory was named."""
    if model_dir is None:
        return
    try:
        _write(model_dir, {"would_start": False, "error": why})
    except (UserError, OSError) as error:
        # It must not hide what the check has found.
        logging.warning("%s cannot be written: %s", FILE_NAME, error)


def _write(model_dir: str, found: dict[str, Any]) -> None:
    path = plain(model_dir)
    files.make_directory(path)
    run_paths.refuse_links(path, FILE_NAME)
    text = json.dumps(
        {"checked": provenance.now(), **found}, indent=2, allow_nan=False
    )
    files.write_whole(os.path.join(path, FILE_NAME), text + "\n")

"""Runs `python -m trainer` several times in one process.

    python -m tests.frozen.series FILE

FILE is a list of command lines in JSON. The exit code and the standard error
of each are written to FILE.ended, as far as it got. Most of a start's time is
TensorFlow's conversion of Python into graphs, which it does once a process.
"""

import contextlib
import io
import json
import os
import pathlib
import runpy
import sys
import traceback

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def main():
    import gin
    import keras

    from trainer.runtime import process_exit

    # The process goes on with the next command line.
    process_exit.end_process = lambda code, **_: sys.exit(code)
    path = pathlib.Path(sys.argv[1])
    ended = []
    for arguments in json.loads(path.read_text()):
        gin.clear_config()
        keras.backend.clear_session(free_memory=False)
        ended.append(_run(arguments))
        path.with_suffix(".ended").write_text(json.dumps(ended))


def _run(arguments):
    """One command line; returns its exit code and standard error."""
    sys.argv = ["trainer", *arguments]
    stderr = io.StringIO()
    code = 0
    with contextlib.redirect_stderr(stderr):
        try:
            runpy.run_module("trainer", run_name="__main__")
        except SystemExit as end:
            code = end.code or 0
        except Exception:
            traceback.print_exc()
            code = 1
    return code, stderr.getvalue()


if __name__ == "__main__":
    main()

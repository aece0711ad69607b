"""Faults, from outside: what a run does when it is killed, cut off or starved.

These tests are frozen: they may be added to, not weakened. They know commands
(`python -m trainer`, `python -m trainer.launch`), environment variables,
signals, the files of a run directory, exit codes, and of sentences only the
facts: who is named, which exit code, which file. They import nothing of the
project, so that whatever is rebuilt inside must still pass them unchanged.

    runs.py        starts, signals and finds processes
    reading.py     reads, compares and damages run directories
    user_code.py   the experiment, and the faults that come from inside it
    faults.gin     how it is configured

A short set is part of the ordinary tests; here is how to run it, and all:

    python -m pytest tests/faults
    python -m pytest tests/faults -m 'long or not long'
"""

"""No traceback, no hang, and no nonsense that is accepted.

Hundreds of runs, with a seed: `python -m pytest -m long tests/fuzz`. A table
says what became of them. What is nonsense each case says by itself.
"""

import collections
import concurrent.futures
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import threading

import pytest

from tests.conftest import ROOT
from tests.fuzz import files, flags_and_values
from tests.fuzz.case import NONSENSE, SENSE
from tests.starts import client

SEED = 20_261_122
LIMIT_SECONDS = 180
# Of CPU, beside the import of TensorFlow, until something is refused.
MOST_SECONDS = 5
AT_ONCE = 2
HERE = pathlib.Path(__file__).parent
KINDS = {
    "flags": flags_and_values.flags,
    "gin values": flags_and_values.values,
    "gin files": files.gin_files,
    "environment": files.environment,
    "run directories": files.run_directories,
    "other modes": files.other_modes,
    "folders of others": files.folders_of_others,
}


def cases(kind):
    return KINDS[kind](random.Random(f"{SEED} {kind}"))


def test_there_are_enough():
    count = sum(len(cases(kind)) for kind in KINDS)
    assert count >= 600
    for kind in KINDS:
        found = [case.what for case in cases(kind)]
        assert len(set(found)) == len(found)
        # The same ones each time.
        assert found == [case.what for case in cases(kind)]


USUAL = ("done", "refused", "diverged", "to be started again")


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_fuzz(kind, tmp_path, capsys):
    template = tmp_path / "template"
    assert start(template, [], {})[0] == 0
    whole = tmp_path / "whole"
    assert start(whole, ["--train_steps=6"], {})[0] == 0
    most_seconds = seconds_to_import() + MOST_SECONDS

    def outcome(number_and_case):
        number, case = number_and_case
        return case, outcome_of(
            case,
            tmp_path / str(number),
            template,
            expected=weights(whole),
            most_seconds=most_seconds,
        )

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(outcome, enumerate(cases(kind))))
    table = collections.Counter(
        (case.kind, result) for case, (result, _) in found
    )
    with capsys.disabled():
        print(f"\n{kind}: {len(found)} cases")
        for (expected, result), count in sorted(table.items()):
            print(f"  {expected:9} {result:28} {count:4}")
    wrong = [
        f"{case.what[:200]}\n  {result}: {text[-1500:]}"
        for case, (result, text) in found
        if result not in USUAL
    ]
    assert not wrong, "\n".join([f"{len(wrong)} of {len(found)}", *wrong])


def weights(folder):
    """The arrays of the newest checkpoint, byte by byte."""
    newest = max(folder.glob("run/checkpoints/step_*"))
    return newest.name, [
        path.read_bytes() for path in sorted(newest.glob("arrays.data*"))
    ]


def outcome_of(case, folder, template, *, expected, most_seconds):
    """What became of a case in words, and what it wrote to stderr."""
    did = ""
    if case.damage is not None:
        shutil.copytree(template, folder)
        did = f"{case.damage(folder / 'run')}\n"
    folder.mkdir(exist_ok=True)
    for place in files.KEPT:
        path = folder / place
        if path.parent.is_dir():
            path.write_text("of the user")
    before = contents(folder)
    code, text, seconds = start(
        folder, case.arguments, case.environ, files=case.files
    )
    result = judged(case, code, text)
    # Wherever it went on from, it ends as a run that nothing has happened to.
    others = ("--mode=", "--model_dir=")
    trains = not any(one.startswith(others) for one in case.arguments)
    if case.damage and trains and code == 0 and weights(folder) != expected:
        result = "OTHER WEIGHTS"
    if code == 2 and seconds > most_seconds:
        result = "REFUSED AFTER A LONG TIME"
    # A refusal changes nothing but the record of the run; a reader nothing.
    after, may_change = contents(folder), trains and code != 2
    for name, content in before.items():
        is_kept = not may_change or name in files.KEPT
        is_record = os.path.basename(name) in files.RECORDS
        # What stands in the way of a run is set aside.
        if is_kept and not is_record and content not in after.values():
            result = f"LOST {name}"
    shutil.rmtree(folder)
    return result, did + text


def contents(folder):
    """What each file holds, by its path."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            found[str(path.relative_to(folder))] = path.read_bytes()
    return found


def judged(case, code, text):
    lines = text.strip().splitlines()
    said = [line for line in lines if line.startswith("error: ")]
    if code is None:
        return "HANGS"
    if "Traceback" in text or code < 0:
        return "TRACEBACK" if code >= 0 else f"KILLED BY {-code}"
    # Such as with a small Guard.max_loss.
    if code == 1 and said and said[-1].startswith("error: Training diverged"):
        return "diverged"
    if code not in (0, 2, 75):
        return f"EXIT CODE {code}"
    if code == 2 and not said:
        return "REFUSED WITHOUT A WORD"
    message = text[text.find("error: ") :]
    if code == 2 and (len(message) > 1500 or message.count("\n") > 4):
        return "REFUSED AT LENGTH"
    if case.kind == NONSENSE and code != 2:
        return "NONSENSE ACCEPTED"
    if case.kind == SENSE and code != 0:
        return "SENSE REFUSED"
    is_named = case.names in message or "needs itself" in message
    if case.kind == NONSENSE and not is_named:
        return "THE PARAMETER IS NOT NAMED"
    return {0: "done", 2: "refused", 75: "to be started again"}[code]


def start(folder, arguments, environ, *, files=()):
    """Runs to the end: exit code, what it wrote to stderr, seconds of CPU."""
    folder.mkdir(exist_ok=True)
    for name in ("fuzz.gin", "fuzz_user_code.py"):
        shutil.copy(HERE / name, folder)
    for name, content in dict(files).items():
        (folder / name).write_bytes(content)
    given = list(arguments)
    if not any(one.startswith("--gin_file") for one in given):
        given.insert(0, "--gin_file=fuzz.gin")
    if not any(one.startswith("--model_dir") for one in given):
        given.append("--model_dir=run")
    log = folder / "stderr.txt"
    with open(log, "wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "trainer", *given],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=file,
            start_new_session=True,
        )
        late = threading.Timer(
            LIMIT_SECONDS, os.killpg, (process.pid, signal.SIGKILL)
        )
        late.start()
        code, seconds = ended(process)
        late.cancel()
    code = None if code == -signal.SIGKILL else code
    return code, log.read_text(errors="replace"), seconds


def ended(process):
    """The exit code and the seconds of CPU of a process, at its end."""
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, used.ru_utime + used.ru_stime


def seconds_to_import():
    command = [sys.executable, "-c", "import tensorflow, keras"]
    with client.plain_starts():
        return ended(subprocess.Popen(command))[1]

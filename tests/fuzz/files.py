"""Cases of damaged gin files, of the environment, and of run directories."""

import json
import os
import pathlib
import random
import shutil

from tests.fuzz.case import EITHER, NONSENSE, SENSE, Case

GIN_FILE = pathlib.Path(__file__).with_name("fuzz.gin")
_TOKENS = ["(", ")", "[", "{", "'", '"', "@", "%", "=", "\\\n", "#", "\0", "\t"]
_TOKENS += [
    "é",
    "\ufeff",
    "import os\n",
    "include 'case.gin'\n",
    "/",
    ".",
    "()",
]


def gin_files(rng: random.Random) -> list[Case]:
    """A file that is right, after a few changes at random places."""
    text = GIN_FILE.read_text()
    cases = []
    for number in range(90):
        changed = _changed(text, rng)
        kind = SENSE if changed == text else EITHER
        cases.append(_of_text(f"text {number}", kind, changed.encode()))
    for what, content in {
        "no text": b"\xff\xfe\x00\x01",
        "NUL": b"a = 1\0",
        "itself": b"include 'case.gin'\n",
        "a circle of macros": b"include 'fuzz.gin'\na = %b\nb = %a\n",
        "a circle of calls": b"include 'fuzz.gin'\nGuard.max_loss = @Guard()\n",
        "a module that is missing": b"import no_such_module\n",
        "a file that is missing": b"include 'no_such.gin'\n",
        "brackets": b"include 'fuzz.gin'\na = " + b"[" * 100_000,
        "balanced brackets": b"a = " + b"[" * 5000 + b"]" * 5000 + b"\n",
        "an open string": b"a = 'x\n",
        "an operator": b"Trainer.batch_size = 2 * 4\n",
        "two callbacks": b"include 'fuzz.gin'\n"
        b"run.callbacks = [@Preemption(), @Preemption()]\n",
        "a class": b"include 'fuzz.gin'\nrun.callbacks = [@Preemption]\n",
        "a word": b"hello\n",
    }.items():
        cases.append(_of_text(what, NONSENSE, content))
    cases += [
        _of_text("nothing more", SENSE, b"include 'fuzz.gin'\n"),
        _of_text("empty", NONSENSE, b""),
        _of_text(
            "a long line",
            SENSE,
            b"include 'fuzz.gin'\nx = '" + b"y" * 100_000 + b"'\n"
            b"metrics.MeanAbsoluteError.name = %x\n",
        ),
    ]
    return cases


def _of_text(what: str, kind: str, content: bytes) -> Case:
    return Case(
        f"gin file: {what}",
        kind,
        ["--gin_file=case.gin"],
        {"case.gin": content},
    )


def _changed(text: str, rng: random.Random) -> str:
    for _ in range(rng.randint(1, 3)):
        at, to = sorted(rng.randrange(len(text)) for _ in range(2))
        to = min(to, at + 20)
        kind = rng.choice(["drop", "insert", "repeat", "swap", "cut"])
        if kind == "drop":
            text = text[:at] + text[to:]
        elif kind == "insert":
            text = text[:at] + rng.choice(_TOKENS) + text[at:]
        elif kind == "repeat":
            text = text[:to] + text[at:]
        elif kind == "swap":
            text = text[:at] + text[at:to][::-1] + text[to:]
        elif rng.random() < 0.3:
            text = text[:to]
    return text


_JSON = [
    "x",
    "{",
    "[]",
    "5",
    "null",
    '"x"',
    "{}",
    '{"cluster": 5}',
    '{"cluster": {"worker": 5}}',
    '{"cluster": {"worker": []}, "task": {}}',
    '{"cluster": {"worker": ["a:1", "b:2"]}}',
    '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 7}}',
    '{"cluster": {"boss": ["a:1"]}, "task": {"type": "boss", "index": 0}}',
    '{"cluster": {"worker": [5, null]}, "task": {"type": 5, "index": "x"}}',
    '{"cluster": {"worker": ["a:99999999", "b"]}, '
    '"task": {"type": "worker", "index": 0}}',
    "[" * 100_000,
    '{"a":' * 20_000,
]
_NUMBERS = ["x", "-1", "1.5", "", "999999999", "9" * 40, "0", "٣"]
_VARIABLES = {
    "TF_CONFIG": _JSON,
    "TRAINER_NUM_WORKERS": _NUMBERS,
    "TRAINER_NUM_PS": _NUMBERS,
    "TRAINER_MIN_WORKERS": _NUMBERS,
    "SLURM_NTASKS": _NUMBERS,
    "SLURM_PROCID": _NUMBERS,
    "SLURM_STEP_NODELIST": ["x[", "[1-9999999999]", "x[1-3", "", "a,,b"],
    "SLURM_STEP_TASKS_PER_NODE": ["x", "1(x9999999999)", "", "0"],
    "TPU_NAME": ["nowhere", "grpc://", ""],
    "GCE_METADATA_HOST": ["x y", ":", "\udcff", "a" * 500],
}


def environment(rng: random.Random) -> list[Case]:
    """Variables that clusters, schedulers and tests set, with nonsense."""
    cases = [
        Case(f"{name}={value[:60]}", EITHER, [], {}, {name: value})
        for name, found in _VARIABLES.items()
        for value in found
    ]
    # Where they count.
    several = ["--strategy=multi_worker_mirrored"]
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "TRAINER_SERVICE": "pods"}
    for name, rest, sensible in (
        ("TF_CONFIG", {}, ("{}", "null")),
        ("TRAINER_MIN_WORKERS", {}, ("", "999999999", "9" * 40)),
        ("TRAINER_NUM_WORKERS", pod, ("",)),
    ):
        for value in _VARIABLES[name]:
            kind = EITHER if value in sensible else NONSENSE
            what = f"{name}={value[:60]}, several workers"
            environ = {**rest, name: value}
            cases.append(Case(what, kind, several, {}, environ))
    slurm = {
        "SLURM_JOB_ID": "1",
        "SLURM_STEP_ID": "0",
        "SLURM_NTASKS": "2",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_PROCID": "0",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_TASKS_PER_NODE": "2",
    }
    for number in range(25):
        environ = dict(slurm)
        for name in rng.sample(sorted(environ), 2):
            known = _VARIABLES.get(name, _NUMBERS)
            environ[name] = rng.choice(known)
        cases.append(Case(f"Slurm {number}", EITHER, [], {}, environ))
    return cases


_TEXTS = [
    "",
    "x",
    "{}",
    "[]",
    "null",
    "{",
    '{"step": "x"}',
    "\0" * 100,
    "9" * 99,
]


def run_directories(rng: random.Random) -> list[Case]:
    """A finished run whose files are damaged, and that goes on."""
    cases = [
        Case(
            "untouched", SENSE, ["--train_steps=6"], damage=lambda folder: None
        )
    ]
    return cases + [
        _damaged(rng, f"damage {number}", ["--train_steps=6"])
        for number in range(80)
    ]


def _damaged(rng: random.Random, name: str, flags: list[str]) -> Case:
    """A command on a run with one damage of its own."""
    seed = rng.randrange(2**32)
    return Case(
        f"{name} (seed {seed})",
        EITHER,
        flags,
        damage=lambda folder: _damage(folder, random.Random(seed)),
    )


# What a user has put beside a run, and into its folders.
KEPT = ["notes.txt"]
KEPT += [f"run/{name}/notes.txt" for name in (".", "checkpoints", "export")]
KEPT = [os.path.normpath(name) for name in KEPT]
# What says how a run began and ended; a refusal is among these.
RECORDS = {"run.json", "run.lock", "stderr.txt"}


def other_modes(rng: random.Random) -> list[Case]:
    """A finished run whose files are damaged, and that is read."""
    modes = ("eval", "export", "continuous_eval", "check") * 9
    return [
        _damaged(
            rng,
            f"{mode} {number}",
            [f"--mode={mode}", "--gin.run.eval_timeout='2s'"],
        )
        for number, mode in enumerate(modes)
    ]


def folders_of_others(rng: random.Random) -> list[Case]:
    """A folder that is no run's, with files where a run wants others."""
    # Not the very files that a new run writes.
    names = ["photo.jpg", "checkpoints", "checkpoints/photo.jpg", "export"]
    names += ["checkpoints/step_5", "checkpoints/step_00000005/arrays.index"]
    names += ["export/photo.jpg", "best", "best/photo.jpg", "best/best.json"]
    names += ["train", "train/photo.jpg", "tensorboard/x", "logs/photo.jpg"]
    names += ["skipped_batches.json", "metrics.jsonl/photo.jpg"]
    cases = []
    for name in names:

        def put(folder: pathlib.Path, name: str = name) -> None:
            path = folder.parent / "mine" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("of the user")

        for more in ([], ["--gin.run.callbacks=[@Export(), @Checkpoint()]"]):
            # Then what the file sets for other callbacks has no effect.
            rest = ["--model_dir=mine", "--allow_unused_bindings", *more]
            what = f"a folder with {name}{' and an export' * bool(more)}"
            cases.append(Case(what, EITHER, rest, damage=put))
    return cases


def _damage(folder: pathlib.Path, rng: random.Random) -> str:
    """Damages one to three files; returns what it did."""
    done = []
    for _ in range(rng.randint(1, 3)):
        files = sorted(p for p in folder.rglob("*") if p.is_file())
        if not files:
            break
        path = rng.choice(files)
        kind = rng.choice(_WAYS)
        kind(path, rng)
        done.append(f"{kind.__name__} {path.relative_to(folder)}")
    return "; ".join(done)


def cut(path: pathlib.Path, rng: random.Random) -> None:
    """Keeps the beginning."""
    content = path.read_bytes()
    path.write_bytes(content[: rng.randint(0, len(content))])


def flip(path: pathlib.Path, rng: random.Random) -> None:
    """Changes some bytes."""
    content = bytearray(path.read_bytes())
    for _ in range(min(len(content), rng.randint(1, 10))):
        content[rng.randrange(len(content))] = rng.randrange(256)
    path.write_bytes(content)


def replace(path: pathlib.Path, rng: random.Random) -> None:
    """Puts something else in its place."""
    path.write_text(rng.choice(_TEXTS))


def lengthen(path: pathlib.Path, rng: random.Random) -> None:
    """Adds to the end."""
    with open(path, "ab") as file:
        file.write(rng.choice(_TEXTS).encode() * rng.randint(1, 100))


def remove(path: pathlib.Path, rng: random.Random) -> None:
    """Removes it."""
    path.unlink()


def make_folder(path: pathlib.Path, rng: random.Random) -> None:
    """Puts a folder in its place."""
    path.unlink()
    path.mkdir()


def link(path: pathlib.Path, rng: random.Random) -> None:
    """Puts a link to nowhere, or to itself, in its place."""
    path.unlink()
    os.symlink(rng.choice(["nowhere", path.name]), path)


def remove_folder(path: pathlib.Path, rng: random.Random) -> None:
    """Removes the folder it is in."""
    if path.parent.name.startswith("step_"):
        shutil.rmtree(path.parent)


def change_json(path: pathlib.Path, rng: random.Random) -> None:
    """Changes one value of a JSON object to another kind."""
    try:
        found = json.loads(path.read_text())
    except (ValueError, UnicodeDecodeError):
        return cut(path, rng)
    place = found
    while isinstance(place, dict) and place:
        key = rng.choice(sorted(place))
        if not isinstance(place[key], dict) or rng.random() < 0.3:
            place[key] = rng.choice([None, -1, "x", [], {}, 1e300, True])
            break
        place = place[key]
    path.write_text(json.dumps(found))
    return None


_WAYS = [cut, flip, replace, lengthen, remove, make_folder, link]
_WAYS += [remove_folder, change_json, change_json]

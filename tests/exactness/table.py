"""The page as Markdown, and what may stand in its tables."""

import pathlib
import tomllib

from tests.exactness.cases import COLUMNS, KINDS, all_cases

_ROOT = pathlib.Path(__file__).resolve().parents[2]
PATH = _ROOT / "docs" / "about" / "exactness.md"
# Written by hand, as the tests of each class found it.
_CLASSES = pathlib.Path(__file__).with_name("classes.md")
_FAILING = pathlib.Path(__file__).parents[1] / "keras_own" / "failing.toml"
STRATEGIES = (
    "default",
    "mirrored:2",
    "mirrored:3",
    "central_storage:2",
    "multi_worker_mirrored@2",
)
TOLERANCE = 1e-5

# Where the Trainer and Keras differ on purpose, by kind, row and column; a
# star stands for all.
BY_DESIGN = {
    ("optimizers", "*", "embedding"): (
        "Keras takes the rows of an embedding's gradient one by one, "
        "once for each lookup in a batch; the Trainer adds them up first, "
        "which is the gradient (see the next column)."
    ),
}

HEAD = """\
# Exactness

Every loss, metric and optimizer class of Keras, trained or measured by a
Trainer and by Keras itself on one device. The tables are made by
`python -m tests.exactness`, which fails if a number is neither equal nor
explained here.

There are 33 examples in batches of 16: the last batch has a single one, so
replicas get uneven pieces of it, or none. Each cell holds for
{strategies}.
A number is the largest difference of any loss, weight or result under any of
them, relative where they are above 1; at most 1e-5 counts as equal. Letters
stand for the notes below: a difference by design, or the error message that
rejects it before the first step, without the name of the class. A number beside
a letter is that of the strategies to which the note does not apply. A dash
means that Keras does not support it.

The optimizers' column *embedding as matrix* compares an `Embedding` here with
the product of one-hot vectors and a matrix in Keras.
"""


def reason(name):
    """Why a cell may differ, or `None`."""
    kind, row, column = name.split("/")
    for (a, b, c), text in BY_DESIGN.items():
        if a == kind and b in ("*", row) and c in ("*", column):
            return text
    return None


def unexplained(found):
    """A line about each number that is neither equal nor explained."""
    return [
        f"{name} under {strategy}: {result}"
        for strategy, cells in found.items()
        for name, result in cells.items()
        if not isinstance(result, str)
        and not result <= TOLERANCE
        and reason(name) is None
    ]


def text(found, not_in_keras):
    """The whole page."""
    notes = {}
    names = [f"`{name}`" for name in found]
    listed = (
        ", ".join(names[:-1]) + " and " + names[-1] if names[1:] else names[0]
    )
    parts = [HEAD.format(strategies=listed)]
    rows = sorted({(case.kind, case.row) for case in all_cases()})
    for kind in KINDS:
        columns = COLUMNS[kind]
        lines = [
            f"## {kind.capitalize()}\n",
            "| class | " + " | ".join(columns) + " |",
            "|---" * (len(columns) + 1) + "|",
        ]
        for a, row in rows:
            if a != kind:
                continue
            cells = [
                _cell(f"{kind}/{row}/{column}", found, not_in_keras, notes)
                for column in columns
            ]
            lines.append(f"| `{row}` | " + " | ".join(cells) + " |")
        parts.append("\n".join(lines) + "\n")
    parts.append("## Notes\n")
    parts += [f"**{mark}** {note}\n" for note, mark in notes.items()]
    return "\n".join([*parts, *written()])


def written():
    """The parts of the page that are not measured by this package."""
    rows = [
        f"| `{file}` | `{name.partition('.')[2]}` | {why} |"
        for file, failing in tomllib.loads(_FAILING.read_text()).items()
        for name, why in failing.items()
    ]
    head = [
        "## Keras' own tests\n",
        "`tests/keras_own` runs the tests of models, training, callbacks and "
        "optimizers\nthat Keras' package ships, with a Trainer in place of "
        "`fit` and `evaluate`. These\nfail, each for the reason given:\n",
        "| file | test | why |\n|---|---|---|",
    ]
    return [_CLASSES.read_text(), *head, "\n".join(rows) + "\n"]


def _cell(name, found, not_in_keras, notes):
    results = [cells[name] for cells in found.values() if name in cells]
    if name in not_in_keras or not results:
        return "-"
    sentences = [result for result in results if isinstance(result, str)]
    numbers = [result for result in results if not isinstance(result, str)]
    row = name.split("/")[1]
    marks = {_mark(_short(one, row), notes) for one in sentences}
    if numbers and max(numbers) > TOLERANCE:
        marks.add(_mark("Differs by design: " + reason(name), notes))
        numbers = [n for n in numbers if n <= TOLERANCE]
    shown = [f"{max(numbers):.0e}"] if numbers else []
    return ", ".join([*shown, *sorted(marks)])


def _short(sentence, row):
    """One note for all classes that are refused for one reason."""
    return "Rejected: " + " ".join(sentence.replace(row, "CLASS").split())


def _mark(note, notes):
    letters = "abcdefghijklmnopqrstuvwxyz"
    number = len(notes)
    first, second = divmod(number, len(letters))
    new = (letters[first - 1] if first else "") + letters[second]
    return notes.setdefault(note, new)

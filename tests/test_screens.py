"""What a person sees: real runs in a real terminal, at four widths."""

import html
import re
import shutil
import subprocess
import sys
import time

import pytest

from tests.conftest import ROOT

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux"),
]
TRAIN = f"{sys.executable} -m trainer"
DIGITS = "--gin_file=experiments/digits.gin"
# A bar's line.
AT = r" *(\d+)/(\d+)  (?:[\d:]+|-:--) left"


class Terminal:
    """A terminal in which a person types.

    Args:
        width: its columns.
    """

    def __init__(self, width):
        self.width = width
        self._tmux("new-session", "-d", "-x", str(width), "-y", "50", "sh")
        # A width that is exported does not change with the terminal.
        self.enter(f"cd {ROOT}; unset COLUMNS; PS1=; clear; echo ready")
        self.see("^ready")

    def _tmux(self, *arguments):
        # A server of its own, with the environment of this process.
        command = ["tmux", "-L", f"screens-{id(self)}", *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def close(self):
        self._tmux("kill-server")

    def enter(self, line):
        self.press(line, "Enter")

    def press(self, *keys):
        self._tmux("send-keys", *keys)

    def resize(self, width):
        self._tmux("resize-window", "-x", str(width))

    @property
    def rows(self):
        """All rows that were printed, as they are on the screen."""
        text = self._tmux("capture-pane", "-p", "-S", "-")
        return [row.rstrip() for row in text.rstrip().splitlines()]

    def says(self, text):
        """Whether it shows a text, wherever that was wrapped."""
        return "".join(text.split()) in "".join("".join(self.rows).split())

    def see(self, pattern, *, seconds=200):
        """Waits until a row matches, and returns all of them."""
        end = time.monotonic() + seconds
        while not any(re.search(pattern, row) for row in self.rows):
            assert time.monotonic() < end, f"{pattern}\n" + "\n".join(self.rows)
            time.sleep(0.1)
        return self.rows

    def run(self, command):
        """Types a command, and returns its rows once it is over."""
        self._tmux("send-keys", "-R")
        self._tmux("clear-history")
        self.enter(f"clear; {command}; echo over=$?")
        rows = self.see(r"^over=\d+$")
        return rows[: [row[:5] for row in rows].index("over=")]


@pytest.fixture(params=[60, 80, 100, 200])
def terminal(request):
    made = Terminal(request.param)
    yield made
    made.close()


def bars(rows):
    return [row for row in rows if re.match(AT, row)]


def test_a_run_that_is_left_and_goes_on(terminal, tmp_path):
    width, model_dir = terminal.width, tmp_path / "run"
    run = f"{TRAIN} {DIGITS} --model_dir={model_dir}"
    terminal.enter(f"clear; {run} --train_steps=1000000")
    terminal.see(r"eval  step 115/1000000  loss \d")
    rows = terminal.see(r"left  epoch \d+: loss \d")
    told = [row for row in rows if row.endswith(" ...")]
    assert told == [
        "importing TensorFlow ...",
        "building the model ...",
        "compiling the step ...",
    ]
    (line,) = bars(rows)
    assert "val_" not in line
    assert ("accuracy" in line) == (width >= 80)
    assert "━━━━" in line
    # Torn lines would stay.
    for other in (width // 2, width + 30, width - 7, width):
        terminal.resize(other)
        time.sleep(1.0)
        assert len(bars(terminal.rows)) == 1
    terminal.press("C-c")
    terminal.see("continue with: ")
    time.sleep(1.0)
    rows = terminal.rows
    assert "stopping after this step (Ctrl-C again to stop at once)" in rows
    (line,) = bars(rows)
    step = int(re.match(AT, line)[1])
    command = f"python -m trainer {DIGITS} --model_dir={model_dir}"
    said = f"saved at step {step}; continue with: {command} --train_steps=10"
    assert terminal.says(said)
    # At most one every 3 seconds.
    assert len([row for row in rows if row.startswith("eval")]) < step / 230
    # No time, thread and source line, which absl puts before what it logs.
    assert not any(re.match(r"[IWE]\d{4} ", row) for row in rows)

    time.sleep(3.0)
    rows = terminal.run(f"{run} --train_steps={step + 50}")
    assert terminal.says(f"resumed from step {step} of run {model_dir}")
    assert terminal.says(f"{step + 50}/{step + 50}  0:00 left")
    closing = " ".join(rows[[row[:7] for row in rows].index("trained") :])
    time_ = r"[\d.]+ (?:ms|s|min)"
    assert re.match(rf"trained {time_} of {time_} \(start-up {time_}", closing)
    assert "paused" in closing
    assert "lost" not in closing

    terminal.run(f"{run} --train_steps={step + 50}")
    said = f"already finished at step {step + 50}; for more: --train_steps="
    assert terminal.says(f"{said}{2 * (step + 50)}")


def test_twelve_values(terminal, tmp_path):
    names = [
        *(
            "mse",
            "mae",
            "mape",
            "msle",
            "log_cosh",
            "hinge",
            "categorical_hinge",
        ),
        *("poisson", "squared_hinge", "kl_divergence", "cosine_similarity"),
    ]
    (tmp_path / "twelve.py").write_text(
        "import keras, numpy as np\nfrom trainer import Trainer\n"
        "x = np.random.default_rng(0).uniform(size=(8000, 3))\n"
        "made = Trainer(keras.Sequential([keras.layers.Dense(1)]), "
        f"loss='mse', metrics={names})\n"
        "made.fit(x, x[:, :1], epochs=40)\n"
    )
    rows = terminal.run(f"{sys.executable} {tmp_path}/twelve.py")
    (line,) = bars(rows)
    assert re.match(r"10000/10000  0:00 left  epoch 40: loss \d", line)
    shown = re.findall(r"  (?:epoch 40: )?([a-z_]+) \d\S*", line)
    assert shown == ["loss", *names][: len(shown)] or terminal.width > 60
    assert len(shown) >= terminal.width // 40
    assert len(line) <= terminal.width - 2


def test_what_there_is_and_what_would_start(terminal):
    rows = terminal.run(f"{TRAIN} --strategy=help")
    if terminal.width >= 80:
        assert len(rows) <= 14
    assert any(re.match(r"mirrored +A replica on each dev", x) for x in rows)
    rows = terminal.run(f"{TRAIN} {DIGITS} --mode=check")
    report = [row for row in rows if row and not row.endswith(" ...")]
    assert report[:2] == ["verdict", " would start      yes"]
    assert not re.search(r"\de[+]\d", "\n".join(rows))
    terminal.run(f"{TRAIN} {DIGITS} --batchsize=3")
    assert terminal.says("Did you mean '--batch_size'?")
    assert not terminal.says("importing TensorFlow")


def test_a_cluster_on_this_machine(terminal, tmp_path):
    flags = f"{DIGITS} --model_dir={tmp_path / 'run'} --train_steps=30"
    terminal.run(f"{TRAIN}.launch --num_workers=2 -- {flags}")
    assert terminal.says("2 workers, 2 replicas, 32 examples each")


def test_the_first_command_prints_what_its_picture_shows(tmp_path):
    """But for numbers, and what one machine spends its time on."""
    command, *promised = rows_of(ROOT / "docs" / "images" / "terminal.svg")
    assert command == f"$ python -m trainer {DIGITS}"
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    terminal = Terminal(100)
    terminal.enter(f"cd {tmp_path}")
    shown = terminal.run(f"{TRAIN} {DIGITS}")
    terminal.close()
    shown, promised = (
        # A slow machine has more evaluations.
        list(dict.fromkeys(re.sub(r"[\d.,-]*\d|━+", "0", x) for x in those))
        for those in (shown, promised)
    )
    at = [row[:7] for row in promised].index("trained")
    assert shown[:at] == promised[:at]
    assert re.match(r"trained 0 m?s of 0 s \(start-up 0 s, ", shown[at])


def rows_of(picture):
    """The rows of a terminal that rich has drawn."""
    parts = re.findall(
        r'<text .*?y="(.*?)".*?>(.*?)</text>', picture.read_text()
    )
    rows = {}
    for y, part in parts:
        rows[y] = rows.get(y, "") + html.unescape(part).replace("\xa0", " ")
    return [row.rstrip() for row in rows.values() if row.strip()]

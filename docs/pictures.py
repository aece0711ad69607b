"""Makes the pictures of the pages, each from a real run.

    python -m pip install -e '.[cpu,digits,docs,plot]'
    python docs/pictures.py              all of them
    python docs/pictures.py terminal.svg tensorboard.png

It takes some minutes, tmux for the terminal, and Chromium for TensorBoard. A
picture is due to be made again when what it was made from has changed: the
files that it names, and the code that draws it. `docs/images/made_from.json`
has a digest of both, which `tests/test_pictures.py` compares.
"""

import hashlib
import inspect
import io
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import layouts

ROOT = pathlib.Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
MADE_FROM = IMAGES / "made_from.json"
DIGITS = (
    "experiments/base.gin",
    "experiments/digits.gin",
    "experiments/trainer_experiments/digits.py",
    "experiments/trainer_experiments/models.py",
)
# Values are logged at the ends of host loops.
LOG_EVERY_20 = ("--gin.run.log_every=20", "--steps_per_loop=20")
# A picture's function, by its name, and the files that it is made from.
PICTURES: dict[str, tuple[Callable, tuple[str, ...]]] = {}


def picture(name, *files):
    """Registers what draws a picture: a function of its path and a folder."""

    def register(function):
        PICTURES[name] = (function, files)
        return function

    return register


def digest(name):
    """What a picture is made from."""
    function, files = PICTURES[name]
    shared = (environment, start, run, losses, two_panels, draw, save)
    parts = [inspect.getsource(one).encode() for one in (function, *shared)]
    parts += [(ROOT / file).read_bytes() for file in files]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def content(name):
    return hashlib.sha256((IMAGES / name).read_bytes()).hexdigest()[:16]


def main(names):
    if unknown := {*names} - {*PICTURES}:
        sys.exit(f"There is no picture {unknown}, but {', '.join(PICTURES)}.")
    made = json.loads(MADE_FROM.read_text()) if MADE_FROM.exists() else {}
    for name in names or PICTURES:
        print(name, flush=True)
        source = digest(name)
        with tempfile.TemporaryDirectory() as folder:
            home = pathlib.Path(folder)
            (home / "experiments").symlink_to(ROOT / "experiments")
            PICTURES[name][0](IMAGES / name, home)
        made[name] = {"from": source, "content": content(name)}
        known = {name: made[name] for name in PICTURES if name in made}
        MADE_FROM.write_text(f"{json.dumps(known, indent=2)}\n")


# Runs


def environment():
    """Where `python` is this one, and TensorFlow's own lines are left out."""
    bin_folder = pathlib.Path(sys.executable).parent
    return os.environ | {
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "-1",
        "COLORTERM": "truecolor",
        "PS1": "$ ",
    }


def start(home, model_dir, *flags):
    """A run of the digits."""
    command = ["python", "-m", "trainer", f"--model_dir={model_dir}"]
    command += ["--gin_file=experiments/digits.gin", *flags]
    return subprocess.Popen(
        command,
        cwd=home,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def run(home, model_dir, *flags):
    code = start(home, model_dir, *flags).wait(timeout=600)
    assert code == 0, f"{flags} ended with {code}"


def losses(home, model_dir):
    """The training loss by step, from the complete lines of its logs."""
    path = home / model_dir / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    found = map(json.loads, text.split("\n")[:-1])
    return {
        one["step"]: one["loss"] for one in found if one["split"] == "train"
    }


# Drawing


def two_panels(title, upper, lower):
    """Axes of curves, and below them smaller ones of their differences."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.8), layout="constrained")
    first, second = figure.subplots(
        2, sharex=True, gridspec_kw={"height_ratios": [2.2, 1]}
    )
    first.set(ylabel=upper, yscale="log")
    first.set_title(title, fontsize="medium")
    second.set(ylabel=lower, xlabel="step")
    for axes in (first, second):
        axes.grid(alpha=0.3)
    return figure, first, second


def draw(axes, values, style, color, **more):
    """A line through values by step."""
    axes.plot([*values], [*values.values()], style, color=color, **more)


def save(figure, path):
    """Writes a figure so that equal ones are equal files."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": path.name}):
        figure.savefig(path, metadata={"Date": None})


# The pictures


@picture(
    "terminal.svg",
    *DIGITS,
    "plugins/trainer_plugins/callbacks/progress.py",
    "plugins/trainer_plugins/callbacks/progress_bar.py",
)
def terminal(path, home):
    """What a run of the digits prints on a terminal of 100 columns."""
    import rich.console
    import rich.text

    def tmux(*words):
        return subprocess.run(
            ["tmux", "-L", f"pictures{os.getpid()}", *words],
            env=environment(),
            cwd=home,
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    def shown_up_to(end):
        for _ in range(600):
            time.sleep(0.2)
            if tmux("capture-pane", "-p").rstrip().endswith(end):
                return tmux("capture-pane", "-e", "-p").rstrip()
        raise TimeoutError(tmux("capture-pane", "-p"))

    size = ("-x", "100", "-y", "50")
    tmux("new-session", "-d", *size, "bash", "--norc", "--noprofile")
    try:
        shown_up_to("$")
        command = "python -m trainer --gin_file=experiments/digits.gin"
        tmux("send-keys", command, "Enter")
        colored = shown_up_to("\n$")
    finally:
        tmux("kill-server")
    text = rich.text.Text.from_ansi(colored.removesuffix("$").rstrip())
    console = rich.console.Console(record=True, width=100, file=io.StringIO())
    console.print(text)
    drawn = console.export_svg(title="", unique_id="terminal")
    # A font that would be loaded from the web.
    path.write_text(re.sub("@font-face {.*?}", "", drawn, flags=re.DOTALL))


@picture("resumed.svg", *DIGITS)
def resumed(path, home):
    """A run that is killed and resumed, on top of an undisturbed one."""
    flags = ("--train_steps=800", *LOG_EVERY_20)
    run(home, "undisturbed", *flags)
    killed = start(home, "killed", *flags)
    while max(losses(home, "killed"), default=0) < 400:
        assert killed.poll() is None, "it ended before step 400"
        time.sleep(0.001)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    before = losses(home, "killed")
    saved = sorted((home / "killed" / "checkpoints").glob("step_*"))
    first = int(saved[-1].name.removeprefix("step_"))
    run(home, "killed", *flags)
    whole, after = losses(home, "undisturbed"), losses(home, "killed")
    assert [*whole] == [*after]
    last = "checkpoints/step_00000800/arrays.data-00000-of-00001"
    arrays = {
        (home / one / last).read_bytes() for one in ("undisturbed", "killed")
    }
    assert len(arrays) == 1, "the arrays differ"
    after_it = {step: loss for step, loss in after.items() if step > first}

    figure, upper, lower = two_panels(
        f"Killed with SIGKILL after step {max(before)}, and started again",
        "loss in training",
        "difference",
    )
    draw(upper, whole, "-", "#c5cae9", linewidth=9, label="undisturbed")
    draw(upper, before, "-", "#3f51b5", linewidth=2, label="killed")
    label = f"resumed from the checkpoint at step {first}"
    draw(upper, after_it, "--", "#e65100", linewidth=2, label=label)
    upper.legend()
    differences = {step: after[step] - whole[step] for step in whole}
    draw(lower, differences, "-", "#e65100")
    lower.set(ylim=(-1e-6, 1e-6))
    most = max(map(abs, differences.values()))
    lower.set_title(
        f"largest difference: {most:g}; the last checkpoints' arrays are the "
        "same bytes",
        fontsize="small",
    )
    for axes in (upper, lower):
        axes.axvline(max(before), color="#b71c1c", linestyle=":")
    save(figure, path)


@picture("replicas.svg", *DIGITS)
def replicas(path, home):
    """The same run on 1, 2, 4 and 8 replicas."""
    counts = (1, 2, 4, 8)
    for count in counts:
        run(
            home,
            f"on_{count}",
            "--strategy=mirrored",
            f"--virtual_devices={count}",
            "--train_steps=400",
            *LOG_EVERY_20,
        )
    found = {count: losses(home, f"on_{count}") for count in counts}
    figure, upper, lower = two_panels(
        "--strategy=mirrored --virtual_devices=1, 2, 4, 8; batch size 64",
        "loss in training",
        "difference\nfrom 1, in 1e-6",
    )
    for number, (count, values) in enumerate(found.items()):
        color, width = f"C{number}", 10 - 2.7 * number
        label = f"{count} replica{'s' if count > 1 else ''}"
        draw(upper, values, "-", color, linewidth=width, label=label)
        if count > 1:
            apart = {k: 1e6 * (v - found[1][k]) for k, v in values.items()}
            draw(lower, apart, "-", color)
    upper.legend()
    save(figure, path)


@picture("sweep.svg", *DIGITS, "trainer/tools/plot.py")
def sweep(path, home):
    """Three learning rates, compared by `trainer.tools.runs`."""
    for rate in (5e-4, 2e-3, 2e-2):
        run(home, f"runs/{rate}", f"--gin.Adam.learning_rate={rate}")
    subprocess.run(
        ["python", "-m", "trainer.tools.runs", f"--plot={path}", "--log"],
        cwd=home,
        env=environment(),
        check=True,
        stdout=subprocess.DEVNULL,
    )


@picture(
    "tensorboard.png", *DIGITS, "plugins/trainer_plugins/loggers/tensorboard.py"
)
def tensorboard(path, home):
    """A run's accuracy in TensorBoard."""
    from playwright.sync_api import sync_playwright

    run(home, "runs/digits", *LOG_EVERY_20)
    log = home / "tensorboard.log"
    with log.open("w") as file:
        server = subprocess.Popen(
            [
                *("tensorboard", "--logdir=runs", "--host=localhost"),
                *("--port=0", "--load_fast=false"),
            ],
            cwd=home,
            env=environment(),
            stderr=file,
            stdout=file,
        )
    try:
        address = address_in(log)
        with sync_playwright() as browsers:
            browser = browsers.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox"]
            )
            size = {"width": 800, "height": 560}
            page = browser.new_page(viewport=size)
            page.goto(f"{address}/?tagFilter=accuracy&smoothing=0#timeseries")
            page.wait_for_selector("scalar-card svg")
            page.get_by_role("button", name="Settings").first.click()
            time.sleep(3)
            page.screenshot(path=path)
            browser.close()
    finally:
        server.terminate()
        server.wait()


def address_in(log):
    """Where a TensorBoard that has just been started answers."""
    for _ in range(600):
        time.sleep(0.5)
        for word in log.read_text().split():
            if word.startswith("http://localhost:"):
                return word.rstrip("/")
    raise TimeoutError(log.read_text())


def layout_of(strategy):
    """Registers the picture of where a strategy keeps what."""

    @picture(f"strategy_{strategy}.svg", "docs/layouts.py")
    def layout(path, home):
        path.write_text(layouts.as_svg(strategy))


for name in layouts.LAYOUTS:
    layout_of(name)

if __name__ == "__main__":
    main(sys.argv[1:])

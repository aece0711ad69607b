"""The line of a bar at several widths: what stays, and what gives way."""

import io
import re

import pytest
from rich.console import Console

from trainer_plugins.callbacks.progress_bar import Bar, Line

SPEED = "5,000 examples/s"
WIDTHS = 60, 80, 100, 200
ONE = {"loss": 0.017}
TWELVE = {**ONE, **{f"metric_{i}": 0.5 for i in range(11)}}


def terminal(width):
    return Console(
        file=io.StringIO(), force_terminal=True, width=width, color_system=None
    )


def line(width, values, *, of="epoch 30"):
    console = terminal(width)
    bar = Bar(console, step=0, steps=1000)
    for step in (100, 300, 690):
        bar.move(step)
    bar.show(of, values, SPEED)
    console.print(Line(bar, bar.tasks[0]))
    (shown,) = console.file.getvalue().splitlines()
    assert len(shown) <= bar.drawn <= width
    if width >= WIDTHS[0]:
        # A terminal writes ^C behind it.
        assert bar.drawn <= width - 2
    return shown


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("values", [ONE, TWELVE])
def test_count_and_time_are_never_cut_and_the_loss_is_next(width, values):
    shown = line(width, values)
    assert re.match(r" 690/1000  \d+:\d\d left  ", shown)
    text, _, bar = shown.partition("  ━")
    names = [f"{name} 0.5000" for name in values][1:]
    first, *others = text.partition("epoch 30: ")[2].split("  ")
    assert first == "loss 0.0170"
    if others and others[-1] == SPEED:
        assert bar
        others.pop()
        assert others == names
    # What is there is whole, and the bar has given way before any value.
    assert others == names[: len(others)]
    if others != names:
        assert len(text) + len("  metric_0 0.5000") > width - 2
    else:
        assert bar


def test_a_long_name_gives_way_to_a_short_one():
    shown = line(60, {"loss": 1.0, "long" * 10: 1.0, "val_x": 1.0, "acc": 0.5})
    assert shown.endswith("loss 1.0000  acc 0.5000")


@pytest.mark.parametrize("width", range(1, 60, 7))
def test_a_line_fits_any_width(width):
    assert line(width, TWELVE, of="")


@pytest.mark.parametrize(("width", "rows"), [(100, 1), (50, 2), (30, 4)])
def test_a_line_that_was_wrapped_by_a_narrower_terminal_is_erased(width, rows):
    """The cursor is in the last row of what was one line."""
    console = terminal(100)
    bar = Bar(console, step=0, steps=10)
    bar.drawn = 100
    console.size = width, 50
    erase, *rest = bar.process_renderables([])
    assert str(erase).count("\x1b[1A") == rows - 1
    assert not rest

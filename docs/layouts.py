"""Draws where each strategy keeps variables and gradients."""

import dataclasses
import html
import itertools

VARIABLES, GRADIENTS = BOTH = ("variables", "gradients")
_COLORS = {VARIABLES: "#3949ab", GRADIENTS: "#d84315"}
# In pixels: an image is as wide as the page of a phone.
_WIDTH, _MARGIN, _PILL, _GAP = 360, 8, 22, 48


def gpus(count, *holds):
    return {f"GPU {number}": holds for number in range(count)}


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where a strategy keeps what.

    Attributes:
        rows: from the top down, machines beside each other: by name their
            devices, and what each of these holds. Arrows join two rows.
        about: what is said of the variables, and of the gradients.
        all_reduce: the text of a bar that joins all devices.
    """

    rows: tuple[dict[str, dict[str, tuple[str, ...]]], ...]
    about: tuple[str, str]
    all_reduce: str = ""


LAYOUTS = {
    "default": Layout(
        ({"host": gpus(1, *BOTH)},),
        ("where TensorFlow puts them", "stay on the device"),
    ),
    "one_device": Layout(
        ({"host": gpus(4) | {"GPU 2": BOTH}},),
        ("on the device that you name", "stay on the device"),
    ),
    "mirrored": Layout(
        ({"host": gpus(4, *BOTH)},),
        ("a copy on each device", "summed over all devices, synchronous"),
        "all-reduce",
    ),
    "central_storage": Layout(
        ({"host": {"CPU": (VARIABLES,)}}, {"same host": gpus(4, GRADIENTS)}),
        ("once, on the CPU", "summed on the CPU, synchronous"),
    ),
    "multi_worker_mirrored": Layout(
        ({f"worker {n}": gpus(2, *BOTH) for n in range(2)},),
        ("a copy on each device", "summed over all workers, synchronous"),
        "collective all-reduce",
    ),
    "parameter_server": Layout(
        (
            {f"server {n}": {"CPU": (VARIABLES,)} for n in range(2)},
            {f"worker {n}": gpus(1, GRADIENTS) for n in range(3)},
        ),
        ("divided among the servers", "applied as they arrive, asynchronous"),
    ),
    "tpu": Layout(
        (
            {
                f"host {n}": {f"core {2 * n + i}": BOTH for i in range(2)}
                for n in range(2)
            },
        ),
        ("a copy on each core", "summed over all cores, synchronous"),
        "all-reduce over the interconnect",
    ),
}


def as_svg(strategy):
    """The picture of a strategy."""
    layout = LAYOUTS[strategy]
    shapes, ends, top = [], [], 34
    for row in layout.rows:
        centers, height = _row(row, top, shapes)
        ends.append((centers, top, top + height))
        top += height + _GAP
    top -= _GAP
    for upper, lower in zip(ends, ends[1:], strict=False):
        _arrows(upper, lower, shapes)
    if layout.all_reduce:
        _bar(*ends[-1], layout.all_reduce, shapes)
        top += 44
    for kind, about in zip(BOTH, layout.about, strict=True):
        _text(_MARGIN, top + 20, f"{kind}: {about}", shapes, kind)
        top += 18
    inner = "\n".join(shapes)
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top + 12}" \
width="{_WIDTH}" height="{top + 12}" font-family="sans-serif" font-size="12">
<title>{strategy}</title>
<rect width="100%" height="100%" rx="6" fill="#fff"/>
<text x="{_MARGIN}" y="21" font-size="14" font-weight="bold">{strategy}</text>
{inner}
</svg>
"""


def _row(machines, top, shapes):
    """Draws machines; returns the centers of their devices, and the height."""
    room = (_WIDTH - _MARGIN) / len(machines) - _MARGIN
    most = max(len(h) for one in machines.values() for h in one.values())
    inner, centers = 24 + most * (_PILL + 4), []
    for number, (name, devices) in enumerate(machines.items()):
        left = _MARGIN + number * (room + _MARGIN)
        _box(left, top, room, inner + 30, "#eceff1", shapes)
        _text(left + 6, top + 14, name, shapes)
        each = (room - _MARGIN / 2) / len(devices) - _MARGIN / 2
        # A machine of one device is not filled by it.
        wide = min(each, 110)
        for place, (device, holds) in enumerate(devices.items()):
            at = left + _MARGIN / 2 + place * (each + _MARGIN / 2)
            at += (each - wide) / 2
            _box(at, top + 20, wide, inner, "#fff", shapes)
            _text(at + wide / 2, top + 34, device, shapes, middle=True)
            for line, kind in enumerate(holds):
                y = top + 40 + line * (_PILL + 4)
                _box(at + 4, y, wide - 8, _PILL, _COLORS[kind], shapes)
                _text(at + wide / 2, y + 15, kind, shapes, "white", middle=True)
            centers.append(at + wide / 2)
    return centers, inner + 30


def _arrows(upper, lower, shapes):
    """Each lower device reads from, and writes to, each upper one."""
    for kind, shift in ((VARIABLES, -5), (GRADIENTS, 5)):
        for above, below in itertools.product(upper[0], lower[0]):
            # Beside each other where they meet.
            meets = above + (below - above) / 4
            end, start = (below + shift, lower[1]), (meets + shift, upper[2])
            if kind == GRADIENTS:
                start, end = end, start
            _arrow(start, end, kind, shapes)


def _bar(centers, top, bottom, text, shapes):
    """A bar below the devices, to and from which their gradients go."""
    for center in centers:
        down, up = (center - 6, center + 6)
        _arrow((down, bottom - 4), (down, bottom + 18), GRADIENTS, shapes)
        _arrow((up, bottom + 18), (up, bottom - 4), GRADIENTS, shapes)
    _box(
        _MARGIN,
        bottom + 18,
        _WIDTH - 2 * _MARGIN,
        _PILL,
        _COLORS[GRADIENTS],
        shapes,
    )
    _text(_WIDTH / 2, bottom + 33, text, shapes, "white", middle=True)


def _arrow(start, end, kind, shapes):
    (x, y), (to_x, to_y) = start, end
    length = ((to_x - x) ** 2 + (to_y - y) ** 2) ** 0.5
    along = ((to_x - x) / length, (to_y - y) / length)
    back = (to_x - 7 * along[0], to_y - 7 * along[1])
    side = (-3.5 * along[1], 3.5 * along[0])
    points = [
        end,
        (back[0] + side[0], back[1] + side[1]),
        (back[0] - side[0], back[1] - side[1]),
    ]
    corners = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
    color = _COLORS[kind]
    shapes.append(
        f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{back[0]:.1f}" '
        f'y2="{back[1]:.1f}" stroke="{color}" stroke-width="1.5"/>'
        f'<polygon points="{corners}" fill="{color}"/>'
    )


def _box(x, y, width, height, color, shapes):
    shapes.append(
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
        f'height="{height:.1f}" rx="4" fill="{color}" stroke="#b0bec5"/>'
    )


def _text(x, y, text, shapes, color="#263238", *, middle=False):
    anchor = ' text-anchor="middle"' if middle else ""
    shapes.append(
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{_COLORS.get(color, color)}"'
        f"{anchor}>{html.escape(text)}</text>"
    )

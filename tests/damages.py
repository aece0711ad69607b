"""What may have happened to a file of a checkpoint, and to its JSON."""

import json
import os
import shutil


def cut(path):
    os.truncate(path, path.stat().st_size - 1)


def halve(path):
    os.truncate(path, path.stat().st_size // 2)


def empty(path):
    os.truncate(path, 0)


def zero(path):
    path.write_bytes(bytes(path.stat().st_size))


def lengthen(path):
    path.write_bytes(path.read_bytes() + b"\n\n{}")


def flip_at(share):
    def flip(path):
        content = bytearray(path.read_bytes())
        content[int(share * (len(content) - 1))] ^= 4
        path.write_bytes(bytes(content))

    return flip


def remove(path):
    path.unlink()


def become_a_directory(path):
    path.unlink()
    path.mkdir()


def become_another(path):
    """That of the checkpoint before: whole, but not of this one."""
    steps = sorted(path.parent.parent.glob("step_*"))
    before = steps[steps.index(path.parent) - 1]
    shutil.copy(before / path.name, path)


def lead_nowhere(path):
    path.unlink()
    path.symlink_to("nowhere")


DAMAGES = {
    "cut": cut,
    "halved": halve,
    "emptied": empty,
    "zeroed": zero,
    "lengthened": lengthen,
    "removed": remove,
    "a directory": become_a_directory,
    "another's": become_another,
    "a dangling link": lead_nowhere,
    **{f"bit flipped at {s:.0%}": flip_at(s) for s in (0, 0.3, 0.5, 1)},
}
MANIFESTS = (
    *("null", "[]", "7", '"state.json"', "{}", '{"state.json": null}'),
    *("[" * 100_000, '{"state.json": ' + "9" * 5000 + "}", "\x00"),
)
STATES = ("null", "[1]", "{}", '{"step": "20"}', '{"step": null}')


def leave_other_files(checkpoints, newest):
    """Those of other programs, in all folders."""
    (newest / ".DS_Store").write_bytes(b"x")
    (newest / "arrays.data-00001-of-00002").write_bytes(b"x")
    (newest / "notes").mkdir()
    (checkpoints / "step_00000030").write_text("a file")
    (checkpoints / "step_00000040").mkdir()
    (checkpoints / "step_x").mkdir()


def lead_elsewhere(manifest, name, entry):
    """Adds another file to a manifest, even if what it says is right."""
    content = json.loads(manifest.read_text())
    content[name] = entry
    manifest.write_text(json.dumps(content))

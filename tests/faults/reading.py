"""What a run directory holds, read as its documentation says."""

import hashlib
import json
import re

# Of state.json: where the time went, and what says who wrote it.
_OF_ONE_ATTEMPT = re.compile("time|account|fingerprint|hash|host|attempt")


def checkpoints(model_dir):
    """The checkpoints by step, the oldest first, whole or not."""
    found = {}
    for path in sorted((model_dir / "checkpoints").glob("step_*")):
        found[int(path.name.removeprefix("step_"))] = path
    return found


def newest(model_dir):
    """The newest step that is saved; 0 if there is none."""
    return max(checkpoints(model_dir), default=0)


def whole_steps(model_dir):
    """The steps of the checkpoints that their manifests agree with."""
    return [s for s, path in checkpoints(model_dir).items() if is_whole(path)]


def is_whole(path):
    """Whether a checkpoint's manifest is right about each of its files."""
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        return manifest.keys() >= {"state.json", "arrays.index"} and all(
            _agrees(path / name, said) for name, said in manifest.items()
        )
    except OSError:
        return False


def reseal(path):
    """Makes the manifest of a checkpoint right about files that changed."""
    manifest = json.loads((path / "manifest.json").read_text())
    for name, said in manifest.items():
        content = (path / name).read_bytes()
        for key, value in said.items():
            is_size = isinstance(value, int)
            said[key] = len(content) if is_size else _sha256(content)
    (path / "manifest.json").write_text(json.dumps(manifest))


def _agrees(path, said):
    content = path.read_bytes()
    return {len(content), _sha256(content)} == set(said.values())


def _sha256(content):
    return hashlib.sha256(content).hexdigest()


def arrays(path):
    """The arrays of a checkpoint, by name."""
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(path / "arrays"))
    names = reader.get_variable_to_shape_map()
    return {name: reader.get_tensor(name) for name in names}


def updates(path):
    """How often the optimizer of a checkpoint was applied."""
    variables = json.loads((path / "state.json").read_text())["variables"]
    (name,) = [
        f"{group}/{number:04d}"
        for group, listed in variables.items()
        for number, variable in enumerate(listed)
        if group.startswith("optimizer")
        and re.search("iterations?$", variable["path"])
    ]
    return int(arrays(path)[name])


def record(model_dir):
    """run.json."""
    return json.loads((model_dir / "run.json").read_text())


def metrics(model_dir, name="metrics.jsonl"):
    """The lines but for the speed; each step of a split is there once."""
    lines = [
        json.loads(line) for line in (model_dir / name).read_text().splitlines()
    ]
    places = [(line["step"], line["split"]) for line in lines]
    assert len(places) == len(set(places)), places
    return [
        {key: line[key] for key in line if key != "examples_per_second"}
        for line in lines
    ]


def assert_equal(model_dir, expected_dir):
    """Asserts that two runs left the same behind, byte by byte."""
    assert metrics(model_dir) == metrics(expected_dir)
    assert newest(model_dir) == newest(expected_dir)
    path, expected_path = (
        checkpoints(folder)[newest(folder)]
        for folder in (model_dir, expected_dir)
    )
    assert is_whole(path)
    found, expected = arrays(path), arrays(expected_path)
    assert found.keys() == expected.keys()
    differing = [
        name
        for name, value in found.items()
        if value.tobytes() != expected[name].tobytes()
    ]
    assert not differing
    assert _lasting_state(path) == _lasting_state(expected_path)


def assert_tidy(model_dir):
    """Asserts that nothing but whole checkpoints is left."""
    folder = model_dir / "checkpoints"
    names = sorted(path.name for path in folder.iterdir())
    assert all(name.startswith("step_") for name in names), names
    assert len(whole_steps(model_dir)) == len(names)


def _lasting_state(path):
    state = json.loads((path / "state.json").read_text())
    assert {"step", "variables", "callbacks"} <= state.keys()
    return {
        key: value
        for key, value in state.items()
        if not _OF_ONE_ATTEMPT.search(key)
    }

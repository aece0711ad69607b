"""What is installed: complete, importable, and layered one way."""

import ast
import email
import importlib
import importlib.metadata
import inspect
import shutil
import subprocess
import sys
import zipfile

import pytest
from packaging.requirements import Requirement

from tests.conftest import ROOT

# By name, where each lies.
PACKAGES = {
    "trainer": ROOT / "trainer",
    "trainer_plugins": ROOT / "plugins" / "trainer_plugins",
    "trainer_experiments": ROOT / "experiments" / "trainer_experiments",
}
SOURCES = sorted(
    path
    for folder in PACKAGES.values()
    for path in folder.rglob("*.py")
    if "__pycache__" not in path.parts
)


def name_of(path):
    """A file's name in the wheel."""
    (home,) = (one for one in PACKAGES.values() if path.is_relative_to(one))
    return str(path.relative_to(home.parent))


def imported_modules(tree):
    """Every module that a file imports, at any depth."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            yield node.module


def public_definitions(tree):
    """Public classes and functions, with those in public classes."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            if node.name.startswith("_"):
                continue
            yield node
            if isinstance(node, ast.ClassDef):
                yield from public_definitions(node)


def build_wheel(home):
    """Builds this project's wheel in a new folder; returns its path."""
    # Built from a copy: setuptools leaves a build folder behind, from which a
    # later wheel would take files that are gone by then.
    copy = home / "copy"
    caches = shutil.ignore_patterns("__pycache__")
    for folder in ("trainer", "plugins", "experiments", "tests/conformance"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=caches)
    for name in ("README.md", "LICENSE", "pyproject.toml", "setup.cfg"):
        shutil.copy(ROOT / name, copy)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    done = subprocess.run(
        [*command, f"--wheel-dir={home}", str(copy)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (path,) = home.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    with zipfile.ZipFile(build_wheel(tmp_path_factory.mktemp("wheel"))) as file:
        yield file


def test_wheel_holds_every_file(wheel):
    expected = {
        name_of(path)
        for folder in PACKAGES.values()
        for path in folder.rglob("*")
        if path.suffix == ".py" or path.name == "py.typed"
    }
    expected |= {
        f"trainer_experiments/gin_files/{path.name}"
        for path in (ROOT / "experiments").glob("*.gin")
    }
    expected |= {
        f"trainer_conformance/{path.name}"
        for path in (ROOT / "tests" / "conformance").glob("*.py")
    }
    expected |= {
        f"trainer/tools/{path.relative_to(ROOT / 'trainer' / 'tools')}"
        for path in (ROOT / "trainer" / "tools" / "template").rglob("*.txt")
    }
    assert {name for name in expected if name.endswith(".gin")}
    assert {f"{package}/py.typed" for package in PACKAGES} <= expected
    shipped = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert shipped == expected


def metadata(wheel):
    (name,) = (n for n in wheel.namelist() if n.endswith("/METADATA"))
    return email.message_from_bytes(wheel.read(name))


def test_wheel_needs_tensorflow_only_by_extra(wheel):
    needed = {
        Requirement(line) for line in metadata(wheel).get_all("Requires-Dist")
    }
    tensorflow = {
        str(one.marker).split("extra == ")[1].strip('"')
        for one in needed
        if one.name.startswith("tensorflow")
    }
    assert tensorflow == {"cpu", "gpu", "tpu"}


def test_each_plugin_has_an_entry_point():
    """One without cannot be named in a gin file, nor by --strategy."""
    from trainer import Callback, StrategyPlugin

    group = importlib.metadata.entry_points(group="trainer.plugins")
    listed = {entry.value for entry in group}
    for path in SOURCES:
        if not name_of(path).startswith("trainer_plugins/"):
            continue
        module = name_of(path).removesuffix(".py").replace("/", ".")
        for name, member in vars(importlib.import_module(module)).items():
            if (
                inspect.isclass(member)
                and issubclass(member, StrategyPlugin | Callback)
                and member.__module__ == module
                and not inspect.isabstract(member)
                and not name.startswith("_")
            ):
                assert f"{module}:{name}" in listed


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_imports_run_one_way(path):
    package = name_of(path).split("/")[0]
    forbidden = {
        "trainer": {"trainer_plugins", "trainer_experiments", "tests"},
        "trainer_plugins": {"trainer_experiments", "tests"},
        "trainer_experiments": {"tests"},
    }[package]
    tree = ast.parse(path.read_text())
    roots = {module.split(".")[0] for module in imported_modules(tree)}
    assert not roots & forbidden


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_plugins_use_only_what_the_trainer_exports(path):
    import trainer
    import trainer.plugin_api

    if path.is_relative_to(ROOT / "trainer"):
        return
    exported = {
        module.__name__: set(module.__all__)
        for module in (trainer, trainer.plugin_api)
    }
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module in exported:
            names = {alias.name for alias in node.names}
            assert names <= exported[node.module]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            roots = {name.split(".")[0] for name in imported_modules(node)}
            assert "trainer" not in roots


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_everything_public_has_a_docstring(path):
    tree = ast.parse(path.read_text())
    missing = [
        f"{node.name} (line {node.lineno})"
        for node in public_definitions(tree)
        if not ast.get_docstring(node)
    ]
    if tree.body and not ast.get_docstring(tree):
        missing.append("the module")
    assert not missing


@pytest.mark.usefixtures("plain_starts")
def test_imports_of_packages_are_light():
    code = "import sys, trainer, trainer_plugins; print(sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(ast.literal_eval(done.stdout))
    assert {"trainer", "trainer_plugins"} <= loaded
    assert not loaded & {"tensorflow", "keras", "gin", "numpy"}


@pytest.mark.parametrize(
    "module", ["trainer", "trainer.plugin_api", "trainer_plugins"]
)
def test_every_exported_name_exists(module):
    exporting = importlib.import_module(module)
    for name in exporting.__all__:
        assert getattr(exporting, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        exporting.no_such_name  # noqa: B018

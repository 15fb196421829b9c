"""The wheel contains real files where the checkout has links, and works without the checkout."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.service.availability.released import build

ROOT = Path(__file__).parents[3]
LINKED = ("service", "backends", "connectors", "migrations")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built like a release: the source archive first, then the wheel from the archive only."""
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel. It takes dependencies from the environment of the tests by path; an editable
    install there is not visible, because path files of a folder named in a path file are not read."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel]
    subprocess.run(install, check=True, capture_output=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def run(environment: Path, tmp_path: Path, *command: str) -> str:
    """Run in an empty folder, where the checkout cannot be imported by accident."""
    program = environment / "bin" / command[0]
    done = subprocess.run([program, *command[1:]], check=False, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.alternating(2)
def test_wheel_contains_the_linked_packages_as_files(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for package in LINKED:
        expected = {
            f"epochal/{package}/{path.relative_to(ROOT / package)}"
            for path in (ROOT / package).rglob("*.py")
            if "__pycache__" not in path.parts
        }
        assert expected
        assert expected <= names
    assert "epochal/py.typed" in names
    console = ROOT / "service" / "console_files"
    files = {file.relative_to(console).as_posix() for file in console.rglob("*") if file.is_file()}
    assert {f"epochal/service/console_files/{file}" for file in files} <= names
    assert "index.html" in files
    tops = {name.split("/")[0] for name in names}
    assert tops == {"epochal", *(top for top in tops if top.endswith(".dist-info"))}


def test_wheel_is_imported_in_its_environment(environment: Path, tmp_path: Path) -> None:
    where = run(environment, tmp_path, "python", "-c", "import epochal; print(epochal.__file__)")
    assert Path(where.strip()).is_relative_to(environment)


@pytest.mark.parametrize(
    "package",
    # All packages, and each of some packages imported first.
    [
        "",
        *(
            pytest.param(it, marks=pytest.mark.long)
            for it in (".service", ".backends", ".connectors", ".engine", ".testing")
        ),
    ],
)
@pytest.mark.alternating(2)
def test_every_module_of_the_wheel_is_importable(environment: Path, tmp_path: Path, package: str) -> None:
    script = f"""
import importlib, pkgutil
root = importlib.import_module("epochal{package}")
names = [module.name for module in pkgutil.walk_packages(root.__path__, root.__name__ + ".")]
for name in names:
    if ".migrations" not in name and not name.endswith("__main__"):  # Alembic runs these; importing __main__ runs it
        importlib.import_module(name)
print(len(names))
"""
    assert int(run(environment, tmp_path, "python", "-c", script)) > 0


@pytest.mark.alternating(2)
def test_command_is_installed(environment: Path, tmp_path: Path) -> None:
    version = run(environment, tmp_path, "python", "-c", "import epochal; print(epochal.__version__)").strip()
    assert version in run(environment, tmp_path, "epochal", "--version")


@pytest.mark.alternating(2)
def test_every_entry_point_is_loadable(environment: Path, tmp_path: Path) -> None:
    script = """
from importlib.metadata import distribution
points = distribution("epochal").entry_points
for point in points:
    point.load()
print(len(points))
"""
    assert int(run(environment, tmp_path, "python", "-c", script)) >= 7

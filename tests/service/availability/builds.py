"""Two builds that run side by side, as before and after an upgrade: the last release, and this tree.

This tree gets one more migration, so that it upgrades a catalog on which control planes of the release run, also while
no migration has been added since.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.kit.next_migration import add_next_migration
from tests.service.availability.released import last_release, unpack

_ROOT = Path(__file__).parents[3]
_FOLDERS = ("epochal", "service", "connectors", "backends", "migrations", "tests")


@dataclass(frozen=True)
class Build:
    """Sources in ``root``, which take precedence over the installed package, and the version that they report."""

    root: Path
    version: str

    def start(
        self, module: str, arguments: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> subprocess.Popen[bytes]:
        """See :class:`tests.service.availability.installation.Program`."""
        with log.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=self.root,
                env=self._environment(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def command(self, *arguments: str, environment: Mapping[str, str]) -> str:
        """The output of a command of this build's ``epochal``. Raises ``AssertionError`` when it fails."""
        command = [sys.executable, "-c", "from epochal.cli.main import main; main()", *arguments]
        done = subprocess.run(
            command, cwd=self.root, env=self._environment(environment), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"epochal {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout

    def _environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        return {**environment, "PYTHONPATH": str(self.root)}


def build_before(folder: Path) -> Build:
    """The last release, in ``folder``."""
    release = last_release()
    unpack(release, folder)
    return Build(folder, release.name)


def build_after(folder: Path) -> Build:
    """This tree with one more migration, in ``folder``."""
    folder.mkdir(parents=True)
    for name in _FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(_ROOT / name, folder / name, symlinks=True, ignore=ignored)
    module = folder / "epochal" / "__init__.py"
    text = module.read_text()
    found = re.search(r'__version__ = "(.*)"', text)
    assert found is not None
    build = Build(folder, f"{found[1]}+after")
    module.write_text(text.replace(found[0], f'__version__ = "{build.version}"'))
    _describe(build)
    add_next_migration(folder / "migrations")
    return build


def _describe(build: Build) -> None:
    """Write the metadata that an installer would write. Without it the installed package's entry points apply."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    described = build.root / f"epochal-{build.version}.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: epochal\nVersion: {build.version}\n")
    groups = [
        "\n".join([f"[{group}]", *(f"{name} = {target}" for name, target in entries.items())])
        for group, entries in project["entry-points"].items()
    ]
    (described / "entry_points.txt").write_text("\n\n".join(groups) + "\n")

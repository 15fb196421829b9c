"""Versions of Epochal beside each other: this checkout, and one of an earlier commit of it."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PREVIOUS = "c88bab7ec735fb6586dae85615695d6275c9ebd1"
"""The version that this one has to run beside, and to take over from without anybody's noticing.

The first commit in which several control planes can run any application: drivers are answered by a process of their
own at every control plane, the leader's lease decides who supervises, and code lies in the store. Before it an artifact
was a file of the control plane that it was uploaded to, and no other one could start what is made of it.

A release moves it to the release before. It also has to move when the protocol of drivers is two ahead of it, which
control planes then tell by themselves: such drivers are replaced (``epochal.wire.internal_api``)."""
_FOLDERS = ("epochal", "service", "connectors", "backends", "migrations", "tests", "pyproject.toml")


class NoSuchCommit(Exception):
    """This is no repository, or one whose history does not reach as far back."""


@dataclass(frozen=True)
class Checkout:
    """The sources in ``root``, which come before whatever version is installed. ``version``: as it says of itself."""

    root: Path
    version: str

    def start(
        self, module: str, arguments: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> subprocess.Popen[bytes]:
        """See :class:`tests.availability.installation.Program`."""
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
        """What ``epochal`` says of this version. Raises ``AssertionError`` when it fails."""
        command = [sys.executable, "-c", "from epochal.cli.main import main; main()", *arguments]
        done = subprocess.run(
            command, cwd=self.root, env=self._environment(environment), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"epochal {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout

    def _environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        return {**environment, "PYTHONPATH": str(self.root)}


def this_checkout() -> Checkout:
    return Checkout(ROOT, _version(ROOT))


def previous_checkout(folder: Path) -> Checkout:
    """:data:`PREVIOUS`, unpacked into ``folder``; it runs with the packages that are installed for this version.

    Raises :class:`NoSuchCommit`.
    """
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", "--format=tar", PREVIOUS, *_FOLDERS], capture_output=True, check=False
    )
    if archive.returncode != 0:
        raise NoSuchCommit(
            f"the previous version is commit {PREVIOUS[:12]}, which is not here ({archive.stderr.decode().strip()}): "
            "this needs a clone with its whole history"
        )
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as content:
        content.extractall(folder, filter="data")
    made = Checkout(folder, f"{_version(folder)}+{PREVIOUS[:12]}")
    # Both versions may have the same number: which one a process is, it has to be able to say.
    module = folder / "epochal" / "__init__.py"
    module.write_text(re.sub(r"__version__ = .*", f'__version__ = "{made.version}"', module.read_text()))
    _describe(made)
    return made


def _version(root: Path) -> str:
    found = re.search(r'__version__ = "(.*)"', (root / "epochal" / "__init__.py").read_text())
    assert found is not None
    return found[1]


def _describe(checkout: Checkout) -> None:
    """As an installer would: else its entry points would be those of the version that is installed."""
    project = tomllib.loads((checkout.root / "pyproject.toml").read_text())["project"]
    described = checkout.root / f"epochal-{checkout.version}.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: epochal\nVersion: {checkout.version}\n")
    groups = [
        "\n".join([f"[{group}]", *(f"{name} = {target}" for name, target in entries.items())])
        for group, entries in project["entry-points"].items()
    ]
    (described / "entry_points.txt").write_text("\n\n".join(groups) + "\n")

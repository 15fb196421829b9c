"""The last release, which runs as the earlier version in a test of rolling upgrades.

    python -m tests.service.availability.released

Builds the wheel of this tree into ``dist``, and stores it below ``releases`` with the test modules that its processes
import, because later test modules need not work with its code. ``make release`` runs it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import epochal
from tests.kit.change_record import ROOT, imported_files

RELEASES = Path(__file__).with_name("releases")
PROGRAMS = "programs.zip"
_STARTED = ("tests/service/availability/plane.py", "tests/service/availability/driver.py")


def last_release() -> Path:
    """The folder of the newest release, with its wheel and its programs."""
    return max(RELEASES.iterdir(), key=lambda folder: [int(part) for part in folder.name.split(".")])


def wheel_of(release: Path) -> Path:
    (wheel,) = release.glob("epochal-*.whl")
    return wheel


def unpack(release: Path, folder: Path) -> None:
    """Write the packages of a release into ``folder``, from which its processes import them."""
    for archive in (wheel_of(release), release / PROGRAMS):
        with zipfile.ZipFile(archive) as content:
            content.extractall(folder)


def build(folder: Path) -> Path:
    """Build the wheel of this tree by way of the source archive, and return its path in ``folder``."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder / f"epochal-{epochal.__version__}-py3-none-any.whl"


def programs() -> list[str]:
    """The test modules that the processes of a control plane and its drivers import, also indirectly."""
    found, pending = set[str](), list(_STARTED)
    while pending:
        file = pending.pop()
        if file not in found:
            found.add(file)
            pending += [each for each in imported_files(ROOT / file) if each.startswith("tests/")]
    packages = {f"{parent}/__init__.py" for file in found for parent in Path(file).parents if str(parent) != "."}
    return sorted(found | {file for file in packages if (ROOT / file).is_file()})


def main() -> None:
    release = RELEASES / epochal.__version__
    if not all(part.isdecimal() for part in release.name.split(".")):
        sys.exit(f"{epochal.__version__} is a version between releases. See CONTRIBUTING.md, Releases.")
    if release.exists():
        sys.exit(
            f"Version {epochal.__version__} is already released. Set the next version in pyproject.toml and epochal/."
        )
    wheel = build(ROOT / "dist")
    release.mkdir(parents=True)
    shutil.copy(wheel, release)
    with zipfile.ZipFile(release / PROGRAMS, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in programs():
            archive.write(ROOT / file, file)
    print(f"Built {wheel}. Commit {release.relative_to(ROOT)}.")


if __name__ == "__main__":
    main()

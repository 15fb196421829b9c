"""Spark's classes, parsed and verified once and mapped into every later JVM: a driver starts in about half the time.

``python -m epochal.engine.class_archive`` makes the archive, below the Python environment or in the folder that
``EPOCHAL_CLASS_ARCHIVES`` names, for the Java and the Spark that are there (the JVM's dynamic class-data sharing). It
only makes things quicker: without one, or with one that does not fit, the JVM loads its classes as ever.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from epochal.errors import EnvironmentProblem

FOLDER = "EPOCHAL_CLASS_ARCHIVES"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
"""The setting of Spark that the options of this module go into."""
SECONDS = 300.0
_TRAINING = "epochal.driver.training"
"""By its name: the layers above know how a session is trained."""
# A class that is left out, or an archive that does not fit, is nothing to tell anyone about.
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"


def archive_options() -> str:
    """Options of a JVM that is about to run Spark; empty where there is no archive for it."""
    archive = find_archive()
    return "" if archive is None else f"-XX:SharedArchiveFile={archive} -XX:+VerifySharedSpaces {_QUIET}"


def training_options(archive: Path) -> str:
    """Options of a JVM that leaves ``archive`` behind when it ends."""
    return f"-XX:ArchiveClassesAtExit={archive} {_QUIET}"


def find_archive() -> Path | None:
    """The archive for this Java and this Spark. One of another size than its name says is damaged, and not used."""
    stem = _stem()
    if stem is None:
        return None
    for path in _folder().glob(f"{stem}-*.jsa"):
        if path.stat().st_size == int(path.stem.rpartition("-")[2]):
            return path
    return None


def make_archive() -> Path:
    """Run Spark once in a process of its own (about half a minute), and keep the classes that it loaded.

    Raises ``EnvironmentProblem`` when Spark does not run or leaves no archive, and ``OSError``.
    """
    there, stem = find_archive(), _stem()
    if there is not None:
        return there
    if stem is None:
        raise EnvironmentProblem(
            f"There is no Java, or a space in {str(_folder())!r}, which the JVM's options cannot have."
        )
    _folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_folder()) as work:
        archive = Path(work) / "classes.jsa"
        _train(archive)
        os.sync()  # a file of the right size whose pages were never written would end every JVM that maps it
        return archive.rename(_folder() / f"{stem}-{archive.stat().st_size}.jsa")


def _train(archive: Path) -> None:
    command = [sys.executable, "-m", _TRAINING, str(archive)]
    try:
        # The JVM writes the archive after Python has ended: what both print ends when both have.
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        raise EnvironmentProblem(f"Spark's classes were not archived within {SECONDS:.0f} s.") from None
    if done.returncode or not archive.exists():
        words = done.stdout.decode(errors="replace").strip()[-500:]
        raise EnvironmentProblem(f"Spark's classes could not be archived (exit code {done.returncode}): {words}")


def _folder() -> Path:
    return Path(os.environ.get(FOLDER) or Path(sys.prefix) / "var" / "epochal")


def _stem() -> str | None:
    """By the files that the JVM compares with its archive: its own, and Spark's jars."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    if java is None or " " in str(_folder()):
        return None
    import pyspark  # a control plane knows of archives, and runs no Spark

    jars = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent) / "jars"
    digest = hashlib.sha256()
    for path in (Path(java).resolve(), *sorted(jars.glob("*.jar"))):
        status = path.stat()
        digest.update(f"{path}:{status.st_size}:{status.st_mtime_ns}\n".encode())
    return f"spark-{pyspark.__version__}-{digest.hexdigest()[:16]}"


if __name__ == "__main__":
    try:
        make_archive()
    except (EnvironmentProblem, OSError) as problem:
        sys.exit(f"{problem} Spark will start slower than it could; nothing else is different.")

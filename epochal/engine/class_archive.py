"""Archive of Spark's parsed and verified classes (class-data sharing), which halves the start time of a driver.

``python -m epochal.engine.class_archive`` creates the archive for the installed Java and Spark, below the Python
environment or in the folder ``EPOCHAL_CLASS_ARCHIVES``. The archive is optional: without one, or with one that does not
match, the JVM loads its classes from the jars.
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
"""Spark setting that receives the options of this module."""
SECONDS = 300.0
_TRAINING = "epochal.driver.training"
"""A module of an upper layer, by name."""
# Skipped classes and archives that do not match are not worth a log line.
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"


def archive_options() -> str:
    """JVM options to use the archive; empty without one."""
    archive = find_archive()
    return "" if archive is None else f"-XX:SharedArchiveFile={archive} -XX:+VerifySharedSpaces {_QUIET}"


def training_options(archive: Path) -> str:
    """JVM options to write ``archive`` at exit."""
    return f"-XX:ArchiveClassesAtExit={archive} {_QUIET}"


def find_archive() -> Path | None:
    """The archive for this Java and this Spark. An archive whose size differs from its name is damaged and ignored."""
    stem = _stem()
    if stem is None:
        return None
    for path in _folder().glob(f"{stem}-*.jsa"):
        if path.stat().st_size == int(path.stem.rpartition("-")[2]):
            return path
    return None


def make_archive() -> Path:
    """Run Spark once in a separate process (about 30 seconds) and archive the classes that it loaded.

    Raises ``EnvironmentProblem`` when Spark does not run or writes no archive, and ``OSError``.
    """
    there, stem = find_archive(), _stem()
    if there is not None:
        return there
    if stem is None:
        raise EnvironmentProblem(
            f"Java was not found, or {str(_folder())!r} has a space, which JVM options cannot contain."
        )
    _folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_folder()) as work:
        archive = Path(work) / "classes.jsa"
        _train(archive)
        os.sync()  # a file of the right size with unwritten pages would crash every JVM that maps it
        return archive.rename(_folder() / f"{stem}-{archive.stat().st_size}.jsa")


def _train(archive: Path) -> None:
    command = [sys.executable, "-m", _TRAINING, str(archive)]
    try:
        # The JVM writes the archive after Python has ended; stdout closes when both have ended.
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        raise EnvironmentProblem(f"Spark's classes were not archived within {SECONDS:.0f} s.") from None
    if done.returncode or not archive.exists():
        output = done.stdout.decode(errors="replace").strip()[-500:]
        raise EnvironmentProblem(f"Spark's classes could not be archived (exit code {done.returncode}): {output}")


def _folder() -> Path:
    return Path(os.environ.get(FOLDER) or Path(sys.prefix) / "var" / "epochal")


def _stem() -> str | None:
    """Name prefix that identifies the files that the JVM compares with its archive: Java and Spark's jars."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    if java is None or " " in str(_folder()):
        return None
    import pyspark  # control planes import this module without Spark

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
        sys.exit(f"{problem} Without the archive Spark starts more slowly; nothing else changes.")

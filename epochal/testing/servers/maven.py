"""Java archives for servers: fetched once with Maven, then kept in the user's cache folder.

The folder is ``$XDG_CACHE_HOME/epochal/servers`` (default ``~/.cache``): outside any checkout, and named after the
requested artifacts, so that another version has another folder. It can be removed at any time.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from epochal.testing.servers.process import ServerUnavailable

SECONDS = 600
"""Timeout for Maven. The first fetch also downloads Maven's plugins."""
SHORT_LIVED = (
    *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    *("-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote"),
)
"""Options for short-lived JVMs. The second compiler and the verification of fetched classes would cost more than they
gain."""
_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"


def artifacts(name: str, coordinates: Sequence[str]) -> Path:
    """Return the folder with the jars of these artifacts (``group:artifact:version``) and their runtime dependencies.

    The first call on a machine fetches them, completely or not at all, even if two processes call concurrently. Raises
    ``ServerUnavailable`` with the reason if Maven, Java or the network is missing.
    """
    digest = hashlib.sha256("\n".join(coordinates).encode()).hexdigest()[:12]
    place = cache() / f"{name}-{digest}"
    if not place.is_dir():
        _require_tools()
        place.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=place.parent))
        try:
            _fetch(name, coordinates, draft)
            _publish(draft / "jars", place)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return place


def java() -> str:
    """Return the path of the program ``java``. Raises ``ServerUnavailable`` if it is missing."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else None
    found = found or shutil.which("java")
    if found is None:
        raise ServerUnavailable("Java 17 or later is needed: there is no java on the PATH, and no JAVA_HOME.")
    return found


def class_path(folder: Path, *first: Path) -> str:
    """Return a Java class path of configuration folders and all jars of ``folder``."""
    return os.pathsep.join([*map(str, first), str(folder / "*")])


def _fetch(name: str, coordinates: Sequence[str], draft: Path) -> None:
    (draft / "pom.xml").write_text(_pom(name, coordinates))
    log = draft / "maven.log"
    command = ["mvn", "--batch-mode", "--quiet", _GOAL, "-DincludeScope=runtime", f"-DoutputDirectory={draft / 'jars'}"]
    try:
        with log.open("wb") as output:
            answer = subprocess.run(
                command, cwd=draft, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, timeout=SECONDS
            )
    except subprocess.TimeoutExpired:
        raise ServerUnavailable(f"Maven did not fetch {name} within {SECONDS} s: is the network slow?") from None
    except OSError as error:
        raise ServerUnavailable(f"Maven could not be run to fetch {name}: {error}.") from error
    if answer.returncode != 0 or not any((draft / "jars").glob("*.jar")):
        raise ServerUnavailable(f"Maven could not fetch {name} ({', '.join(coordinates)}): {_reason(log)}")


def _publish(jars: Path, place: Path) -> None:
    """Publish the jars with one rename. A concurrent process that comes second finds the same jars."""
    try:
        jars.rename(place)
    except OSError:
        if not place.is_dir():
            raise


def _require_tools() -> None:
    java()
    if shutil.which("mvn") is None:
        raise ServerUnavailable("mvn is not on the PATH: install Maven, which fetches the server's jars.")


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "epochal" / "servers"


def _reason(log: Path) -> str:
    errors = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("[ERROR]")]
    return (errors[0] if errors else "it gave no reason")[:500]


def _pom(name: str, coordinates: Sequence[str]) -> str:
    dependencies = "".join(
        f"<dependency><groupId>{escape(group)}</groupId><artifactId>{escape(artifact)}</artifactId>"
        f"<version>{escape(version)}</version></dependency>"
        for group, artifact, version in (coordinate.split(":") for coordinate in coordinates)
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        f"<groupId>epochal.testing</groupId><artifactId>{escape(name)}</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>\n"
    )

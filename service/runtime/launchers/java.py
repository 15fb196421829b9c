"""Check for a Java that Spark supports, before a driver is started, so that the error message is clear."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from epochal.errors import EnvironmentProblem

OLDEST = 17
_INSTALL = (
    f"Install Java {OLDEST} or later (for example `apt install openjdk-17-jre-headless` or `brew install openjdk@17`), "
    "or set JAVA_HOME to one, and start the control plane again."
)
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def check_java(environment: Mapping[str, str]) -> int:
    """The major version of the Java that Spark will find in ``environment``. Raises ``EnvironmentProblem``."""
    command = _java_command(environment)
    try:
        answer = subprocess.run(
            [command, "-version"], capture_output=True, text=True, timeout=30, env=dict(environment), check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentProblem(f"Spark needs Java, and {command} cannot be run: {error}. {_INSTALL}") from error
    found = _VERSION.search(answer.stderr + answer.stdout)
    if found is None:
        raise EnvironmentProblem(f"Spark needs Java, and {command} does not report its version. {_INSTALL}")
    version = int(found.group(1))
    if version < OLDEST:
        raise EnvironmentProblem(f"Spark needs Java {OLDEST} or later; {command} is Java {version}. {_INSTALL}")
    return version


def _java_command(environment: Mapping[str, str]) -> str:
    home = environment.get("JAVA_HOME")
    if home:
        command = Path(home) / "bin" / "java"
        if not command.is_file():
            raise EnvironmentProblem(f"Spark needs Java, and JAVA_HOME ({home}) has no bin/java. {_INSTALL}")
        return str(command)
    found = shutil.which("java", path=environment.get("PATH"))
    if found is None:
        raise EnvironmentProblem(f"Spark needs Java, and there is no `java` on the PATH. {_INSTALL}")
    return found

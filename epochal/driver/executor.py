"""``python -m epochal.driver.executor executor``: a Spark executor in a pod.

Spark passes the settings of an executor in environment variables to the entry script of its own image. This module
replaces that script in any image with Epochal and Java; the image needs no part of Spark other than the package.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

_OPTION = "SPARK_JAVA_OPT_"
_BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"


def executor_command(environment: Mapping[str, str], spark: Path) -> list[str]:
    """The JVM's command. ``spark``: the folder with Spark's ``jars``. Raises ``KeyError`` if a variable is missing."""
    home = environment.get("JAVA_HOME")
    options = sorted((int(name.removeprefix(_OPTION)), name) for name in environment if name.startswith(_OPTION))
    memory = environment["SPARK_EXECUTOR_MEMORY"]
    classes = [environment.get("SPARK_EXTRA_CLASSPATH", ""), environment.get("HADOOP_CONF_DIR", ""), f"{spark}/jars/*"]
    arguments = {
        "--driver-url": environment["SPARK_DRIVER_URL"],
        "--executor-id": environment["SPARK_EXECUTOR_ID"],
        "--cores": environment["SPARK_EXECUTOR_CORES"],
        "--app-id": environment["SPARK_APPLICATION_ID"],
        "--hostname": environment["SPARK_EXECUTOR_POD_IP"],
        "--resourceProfileId": environment["SPARK_RESOURCE_PROFILE_ID"],
        "--podName": environment["SPARK_EXECUTOR_POD_NAME"],
    }
    return [
        str(Path(home) / "bin" / "java") if home else "java",
        *(environment[name] for _, name in options),
        *(f"-Xms{memory}", f"-Xmx{memory}"),
        *("-cp", os.pathsep.join(filter(None, classes))),
        _BACKEND,
        *(word for argument in arguments.items() for word in argument),
    ]


def main() -> int:
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        print("There is no Spark in this image; it has to be one of Epochal.", file=sys.stderr)
        return 1
    try:
        command = executor_command(os.environ, Path(os.environ.get("SPARK_HOME") or Path(found.origin).parent))
    except KeyError as error:
        print(f"This is not a pod of an executor: Spark has not set {error.args[0]}.", file=sys.stderr)
        return 1
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]} cannot be run: {error.strerror}. The image needs Java 17 or later.", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())

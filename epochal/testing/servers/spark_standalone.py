"""A Spark standalone cluster with several executors, from the ``pyspark`` wheel alone.

``SPARK_HOME`` is the package's own folder. Executors run the Python of the caller (``PYSPARK_PYTHON``).
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from epochal.testing.servers.process import LOOPBACK, ServerProcess, ServerUnavailable, accepts, free_port

MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"


@dataclass(frozen=True)
class StandaloneCluster:
    """``master_url`` is the value for ``SparkSession.builder.master`` and for an application's ``master``."""

    master_url: str
    master: ServerProcess
    workers: list[ServerProcess]
    folder: Path
    """The folder with the workers' executor folders and logs."""
    start_worker: Callable[[int], ServerProcess]
    """Starts the worker with a number."""

    def add_worker(self) -> None:
        """Add a worker, like a machine that joins the cluster. Does not wait until it has registered."""
        self.workers.append(self.start_worker(len(self.workers)))

    def private_folder(self, worker: int) -> Path:
        """The folder that a worker, by its number, and its executors see at the path of ``private``."""
        return self.folder / f"private-{worker}"

    def executors(self, worker: int | None = None) -> list[int]:
        """Return the process ids of the executors of one worker, by its number, or of all.

        They are child processes of the workers, each of which leads a session.
        """
        sessions = {each.pid for each in (self.workers if worker is None else [self.workers[worker]])}
        running = (entry for entry in Path("/proc").iterdir() if b"CoarseGrainedExecutorBackend" in _command(entry))
        return sorted(int(entry.name) for entry in running if os.getsid(int(entry.name)) in sessions)


@contextmanager
def standalone_cluster(
    workers: int = 2,
    cores: int = 1,
    memory: str = "1g",
    private: Path | None = None,
    disks: Mapping[int, int] | None = None,
) -> Iterator[StandaloneCluster]:
    """Start a master and ``workers`` workers of ``cores`` cores and ``memory`` each. Raises ``ServerUnavailable``.

    ``private``: a folder, which is created. Each worker and its executors see a folder of their own at this path, as on
    machines of their own. This requires the right to create mount namespaces. ``disks``: sizes in bytes of the file
    systems of these folders, by the worker's number; without one, the folder is in that of :attr:`folder`.
    """
    if private is not None:
        _check_mounts(private)
    spark_class = _spark_home() / "bin" / "spark-class"
    folder = Path(tempfile.mkdtemp(prefix="epochal-spark-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        environment = _environment(folder)
        port, page = free_port(), free_port()
        address = ["--host", LOOPBACK, "--port", str(port), "--webui-port", str(page)]
        master = ServerProcess("Spark's master", [spark_class, MASTER, *address], folder / "master.log", environment)
        stack.callback(master.stop)
        master.wait_until(lambda: accepts(port) and _alive_workers(page) is not None, seconds=60)
        master_url = f"spark://{LOOPBACK}:{port}"

        def start_worker(number: int) -> ServerProcess:
            # Spark prefers any executor of a host to those of others, and speculates on other hosts only.
            options = ["--host", f"127.0.0.{1 + number}", "--webui-port", "0", "-c", str(cores), "-m", memory]
            place: list[str | Path] = ["--work-dir", folder / f"worker-{number}"]
            command: list[str | Path] = [spark_class, WORKER, *options, *place, master_url]
            if private is not None:
                command = _with_own(private, folder / f"private-{number}", (disks or {}).get(number), command)
            worker = ServerProcess("A Spark worker", command, folder / f"worker-{number}.log", environment)
            stack.callback(worker.stop)
            return worker

        started = [start_worker(number) for number in range(workers)]
        for worker in started:
            worker.wait_until(lambda: _alive_workers(page) == workers, seconds=60)
        yield StandaloneCluster(master_url, master, started, folder, start_worker)


def _check_mounts(private: Path) -> None:
    private.mkdir(parents=True, exist_ok=True)
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        raise ServerUnavailable("Workers with folders of their own need the right to create mount namespaces.")


def _with_own(shared: Path, own: Path, disk: int | None, command: list[str | Path]) -> list[str | Path]:
    """A command that sees the folder ``own`` at the path ``shared``, or a file system of ``disk`` bytes."""
    own.mkdir()
    mount = 'mount --bind "$0" "$1"' if disk is None else f'mount -t tmpfs -o size={disk} tmpfs "$1"'
    return ["unshare", "-m", "sh", "-c", f'{mount} && shift && exec "$@"', own, shared, *command]


def _spark_home() -> Path:
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise ServerUnavailable("Spark is not installed: pip install pyspark.")
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        raise ServerUnavailable("Spark needs Java 17 or later, and there is no java on the PATH and no JAVA_HOME.")
    return Path(found.origin).parent


def _environment(folder: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME", "LANG", "LC_ALL") if name in os.environ}
    return kept | {
        "SPARK_HOME": str(_spark_home()),
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
        "PYSPARK_PYTHON": sys.executable,
    }


def _alive_workers(page: int) -> int | None:
    """Return the number of workers that the master counts as alive; ``None`` if it does not answer."""
    try:
        with urllib.request.urlopen(f"http://{LOOPBACK}:{page}/json/", timeout=5) as answer:
            states = [str(worker["state"]) for worker in json.load(answer)["workers"]]
    except (urllib.error.URLError, OSError, ValueError, KeyError):
        return None
    return states.count("ALIVE")


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""

"""Three machines of the chaos runs: workers of a standalone cluster with caches of their own, and their faults."""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from epochal.testing.servers.spark_standalone import StandaloneCluster, standalone_cluster

MACHINES = 3
DISTURBANCES = (
    "executor killed",
    "executors killed one after the other",
    "machine replaced",
    "cache deleted",
    "cache corrupted",
)


@dataclass(frozen=True)
class Machines:
    """``cache``: the path at which each machine has a folder of its own."""

    cluster: StandaloneCluster
    cache: Path

    @property
    def configuration(self) -> dict[str, str]:
        """Configuration of an application with an executor on each machine."""
        cores = {"spark.executor.cores": "1", "spark.cores.max": str(MACHINES)}
        # The driver is one without a control plane, which passes no variables of a store to executors.
        store = {f"spark.executorEnv.{name}": value for name, value in os.environ.items() if name.startswith("AWS_")}
        return {"master": self.cluster.master_url, "spark.executor.memory": "512m", **cores, **store}

    def disturb(self, what: str, chance: random.Random, works: Callable[[], bool]) -> None:
        """Disturb a machine, or all of them. ``works``: whether the driver still runs."""
        machine = chance.randrange(MACHINES)
        match what:
            case "executor killed":
                self._kill(machine)
            case "executors killed one after the other":
                for each in chance.sample(range(MACHINES), MACHINES):
                    self._kill(each)
                    time.sleep(chance.uniform(0, 4))
                    if not works():
                        break
            case "machine replaced":
                self._kill(machine)
                self._delete(machine)
            case "cache deleted":
                self._delete(machine)
            case "cache corrupted":
                self._kill(machine)
                self._corrupt(machine, chance)
            case _:
                raise ValueError(f"unknown disturbance {what!r}")

    def clear(self) -> None:
        """Delete what a history has left on the machines."""
        for machine in range(MACHINES):
            self._delete(machine)

    def _kill(self, machine: int) -> None:
        for executor in self.cluster.executors(machine):
            with suppress(ProcessLookupError):
                os.kill(executor, signal.SIGKILL)

    def _delete(self, machine: int) -> None:
        for entry in self.cluster.private_folder(machine).iterdir():
            shutil.rmtree(entry, ignore_errors=True)

    def _corrupt(self, machine: int, chance: random.Random) -> None:
        """Damage some of the files: other bytes, a missing end, or nothing left."""
        for path in self._files(machine):
            if chance.random() < 0.3:
                with suppress(FileNotFoundError), path.open("r+b") as file:
                    size = file.seek(0, os.SEEK_END)
                    if chance.random() < 0.5:
                        file.truncate(chance.randrange(size))
                    else:
                        file.seek(chance.randrange(size))
                        file.write(chance.randbytes(8))

    def _files(self, machine: int) -> Sequence[Path]:
        found = sorted(self.cluster.private_folder(machine).rglob("*"))
        return [path for path in found if path.is_file() and path.stat().st_size]


@contextmanager
def machines() -> Iterator[Machines]:
    """Three machines. Raises ``ServerUnavailable``."""
    with tempfile.TemporaryDirectory(prefix="epochal-chaos-machines-") as folder:
        cache = Path(folder, "cache")
        with standalone_cluster(MACHINES, 1, private=cache) as cluster:
            yield Machines(cluster, cache)

"""Placement on a standalone cluster of three workers, each with a cache of its own, as on three machines.

State of a million keys, then small epochs. Counted are the bytes of state that tasks read from the store, and the
machines on which each subtask runs; neither depends on the speed of the machine. Once more with
``spark.speculation=true``, for which placement is off: that is how it was without placement.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks import engine, inputs, pipelines
from benchmarks.result import Result, at_most, number
from epochal.contracts.configuration import Configuration
from epochal.contracts.measurements import Origin, PlacementReport
from epochal.engine.meter import Meter
from epochal.testing.servers.spark_standalone import StandaloneCluster, standalone_cluster

WORKERS, SUBTASKS = 3, 6
KEYS, ROWS, EPOCHS = 1_000_000, 10_000, 30
COLD_EPOCHS = 5
"""First epochs that are not counted: executors come one after the other."""


def run(folder: Path) -> list[Result]:
    inputs.write_every_key(folder / "input" / "!every-key.parquet", KEYS)
    inputs.write_files(folder / "input", COLD_EPOCHS + EPOCHS, ROWS, KEYS)
    placed, anywhere = (_counted(folder, name, speculation) for name, speculation in (("on", False), ("off", True)))
    how = f"{WORKERS} executors, {KEYS:,} keys, {SUBTASKS} subtasks, {EPOCHS} epochs of {ROWS:,} rows"
    return [
        at_most("placement: state read from the store in a warm epoch", placed.read, 0, "KB", how),
        number("placement off: state read from the store in a warm epoch", anywhere.read, "KB", "speculation"),
        at_most("placement: machines on which a subtask runs", placed.most_visited, 1, "machines", how),
        number("placement off: machines on which a subtask runs", anywhere.most_visited, "machines", "speculation"),
        number("placement: epoch, p50", placed.milliseconds, "ms", how, digits=0),
        number("placement off: epoch, p50", anywhere.milliseconds, "ms", "speculation", digits=0),
    ]


@dataclass(frozen=True)
class Counted:
    """``read``: mean size of state that an epoch read from the store, in KB. ``most_visited``: greatest number of
    machines of a subtask. ``milliseconds``: median of the epochs."""

    read: float
    most_visited: int
    milliseconds: float


@dataclass
class Places(Meter):
    """Notes where the subtasks of each epoch ran and what they read."""

    read: dict[int, Mapping[Origin, int]] = field(default_factory=dict)
    machines: dict[int, Mapping[str, Sequence[str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()

    def ran_on(self, ran: PlacementReport) -> None:
        super().ran_on(ran)
        self.read[ran.epoch], self.machines[ran.epoch] = ran.read_bytes, ran.machines


def _counted(folder: Path, name: str, speculation: bool) -> Counted:
    run = folder / name
    with standalone_cluster(WORKERS, 1, private=run / "cache") as cluster:
        settings = _configuration(run, cluster, speculation)
        places = Places()
        with engine.engine_session(settings) as spark:
            epochs = 1 + COLD_EPOCHS + EPOCHS
            times = engine.run_epochs(pipelines.aggregate(folder / "input"), spark, run, settings, epochs, meter=places)
    warm = sorted(places.machines)[-EPOCHS:]
    visited: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
    for epoch in warm:
        for operator, machines in places.machines[epoch].items():
            for subtask, machine in enumerate(machines):
                visited[operator, subtask].add(machine)
    if not speculation and len({machine for machines in visited.values() for machine in machines}) != WORKERS:
        raise RuntimeError(f"the subtasks did not run on {WORKERS} machines: {dict(visited)}")
    return Counted(
        read=sum(places.read[epoch].get("store", 0) for epoch in warm) / len(warm) / 1000,
        most_visited=max(map(len, visited.values())),
        milliseconds=median(time.seconds for time in times[-EPOCHS:]) * 1000,
    )


def _configuration(folder: Path, cluster: StandaloneCluster, speculation: bool) -> Configuration:
    executors = {"spark.executor.cores": "1", "spark.executor.memory": "512m", "spark.cores.max": str(WORKERS)}
    settings = engine.configuration(folder, master=cluster.master_url, parallelism=SUBTASKS)
    spark = {**settings.spark, **executors, "spark.speculation": str(speculation).lower()}
    return settings.model_copy(update={"spark": spark})

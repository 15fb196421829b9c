"""Wrong ways to write and to delete packs, to sweep files of lost tasks, and to use deltas of this machine."""

from __future__ import annotations

from typing import Any

from tests.mutants.mutant import change, mutant

PACKS = "tests/unit/test_packs.py"
MACHINE = "tests/unit/test_machine_deltas.py"
SIMULATION = "tests/simulation/test_simulation.py"
REPEATED = "tests/spark/test_repeated_tasks.py"


@mutant("packs: the places of files are off by one file", PACKS)
def _next_file() -> None:
    from epochal.snapshots.packs import Pack

    def shifted(places: Any) -> Any:
        def wrong(self: Any) -> Any:
            right = places.fget(self)
            paths = list(right)
            return {path: right[paths[min(number + 1, len(paths) - 1)]] for number, path in enumerate(paths)}

        return property(wrong)

    change(Pack, "places", shifted)


@mutant("packs: the abort of an epoch deletes the pack of its parent", SIMULATION)
def _parents_pack() -> None:
    from epochal.engine.undecided import Undecided
    from epochal.snapshots import layout

    def forgetful(forget: Any) -> Any:
        def wrong(self: Any, store: Any, participants: Any) -> None:
            forget(self, store, participants)
            written = layout.by_epoch(store.list(layout.manifests(self.scope.branch)))
            parent = 0 if self.scope.parent is None else self.scope.parent.epoch
            for path in written.get(parent, ()):
                if path.endswith(".pack"):
                    store.delete(path)

        return wrong

    change(Undecided, "forget", forgetful)


@mutant("packs: files of a task exceed its limit", PACKS)
def _unlimited() -> None:
    from epochal.snapshots.task_files import TaskFiles

    def unlimited(init: Any) -> Any:
        def wrong(self: Any, store: Any, carried_bytes: int | None = None) -> None:
            init(self, store, 1 << 30)

        return wrong

    change(TaskFiles, "__init__", unlimited)


@mutant("packs: an epoch is not swept although a task was repeated", SIMULATION)
def _never_swept() -> None:
    from epochal.engine.retention import Retention

    def trusting(sweep: Any) -> Any:
        def wrong(self: Any, epoch: Any) -> None:
            epoch.repeated = lambda: False
            sweep(self, epoch)

        return wrong

    change(Retention, "_sweep", trusting)


@mutant("packs: a repeated task counts as the only run", REPEATED)
def _repeated_unseen() -> None:
    from epochal.engine.spark_runner import SparkRunner

    change(SparkRunner, "repeated", lambda _: lambda self, runs: False)


@mutant("machine deltas: the bytes are not checked", MACHINE)
def _unchecked() -> None:
    from epochal.backends.machine_deltas import MachineDeltas

    def trusting(bytes_of: Any) -> Any:
        def wrong(self: Any, file: Any, of: str) -> Any:
            try:
                return self._place(file).read_bytes()
            except OSError:
                return bytes_of(self, file, of)

        return wrong

    change(MachineDeltas, "bytes_of", trusting)


@mutant("machine deltas: subtasks of a table share a place", MACHINE)
def _shared_place() -> None:
    from epochal.backends.machine_deltas import MachineDeltas

    def shared(place: Any) -> Any:
        return lambda self, file: place(self, file).parent.with_name("shared") / "0"

    change(MachineDeltas, "_place", shared)

"""Look-ups, history, fork and rollback with S3 at 30 ms a request, beside those with a local store.

Each operation is measured in a restarted control plane, after it was performed on another application: the code is
loaded and no snapshot is cached. Its repetitions are warm.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import median

import pyarrow.parquet as pq

from benchmarks.object_store.places import (
    ROWS,
    Place,
    counted,
    feed,
    local_place,
    place_in_s3,
    purposes,
    submit,
)
from benchmarks.result import Result, at_most, number
from benchmarks.running import head, wait_for
from epochal.client import Client
from epochal.testing.servers.s3_requests import Request

TURNS, WARM = 3, 5
"""Each turn measures each operation once cold and ``WARM`` times warm. An odd number: a rollback ends at the head."""
DELAY_MS = 30
EPOCHS, OTHER_EPOCHS, OLD, COMPACT_AFTER = 60, 3, 50, 40
"""The old epoch has bases and ten deltas."""
KEYS = 20_000
MEASURED, OTHER = "measured", "other"
FORK = "fork"
_numbers = count()


@dataclass(frozen=True)
class Subject:
    """A stopped application. ``key`` changed in its first epoch only. ``old`` and ``last``: committed epochs."""

    client: Client
    name: str
    key: int
    old: int
    last: int


Operation = Callable[[Subject], object]


@dataclass
class Taken:
    """Durations of an operation in seconds. ``requests``: of the first time, until its answer; ``later``: after its
    answer, such as those of replicas."""

    cold: list[float] = field(default_factory=list)
    warm: list[float] = field(default_factory=list)
    requests: list[list[Request]] = field(default_factory=list)
    later: list[list[Request]] = field(default_factory=list)
    of_warm: list[list[Request]] = field(default_factory=list)


def run(folder: Path, turns: int = TURNS) -> list[Result]:
    with ExitStack() as stack:
        places = [
            stack.enter_context(local_place(folder / "local")),
            stack.enter_context(place_in_s3(folder / "s3")),
        ]
        for place in places:
            _create_applications(place, place.plane.home.parent)
            if place.proxy is not None:
                place.proxy.delay(DELAY_MS / 1000)
        taken = {name: (Taken(), Taken()) for name in OPERATIONS}
        for turn in range(turns):
            for name, sides in taken.items():
                for place, side in list(zip(places, sides, strict=True))[:: -1 if turn % 2 else 1]:
                    _take_turn(place, OPERATIONS[name], side)
    return [result for name, sides in taken.items() for result in _results(name, *sides)]


def _create_applications(place: Place, folder: Path) -> None:
    settings = {"epoch_interval_seconds": 0.1, "compact_after_epochs": COMPACT_AFTER}
    with place.plane.client() as client:
        for name, epochs in ((MEASURED, EPOCHS), (OTHER, OTHER_EPOCHS)):
            source = feed(folder / f"input-{name}", epochs, KEYS)
            application = submit(client, name, source, None, settings)
            wait_for(lambda application=application, epochs=epochs: head(application) >= epochs, "all epochs")  # type: ignore[misc]
            client.operations.wait(client.applications.stop(name), timeout_seconds=120)


def _take_turn(place: Place, operation: Operation, taken: Taken) -> None:
    folder = place.plane.home.parent
    place.plane.restart()
    with place.plane.client() as client:
        other = Subject(client, OTHER, _key(folder / f"input-{OTHER}"), 2, OTHER_EPOCHS)
        for _ in range(2):  # a rollback ends at the head
            operation(other)
        measured = Subject(client, MEASURED, _key(folder / f"input-{MEASURED}"), OLD, EPOCHS)
        place.wait_until_idle()
        for time_of_operation in range(1 + WARM):
            mark = place.mark
            started = time.perf_counter()
            operation(measured)
            seconds = time.perf_counter() - started
            requests = place.requests(mark)
            mark += len(requests)
            place.wait_until_idle()
            if time_of_operation == 0:
                taken.cold.append(seconds)
                taken.requests.append(requests)
                taken.later.append(place.requests(mark))
            else:
                taken.warm.append(seconds)
                taken.of_warm.append(requests)


def _key(source: Path) -> int:
    """A key of the first file that no later one has: its look-up reads the whole chain."""
    first, *later = sorted(source.iterdir())
    keys: set[int] = set(pq.read_table(first)["key"].to_pylist())
    return min(keys.difference(*(pq.read_table(file)["key"].to_pylist() for file in later)))


def _look_up(subject: Subject) -> None:
    assert subject.client.application(subject.name).state("counts").get(subject.key).value


def _look_up_old(subject: Subject) -> None:
    found = subject.client.application(subject.name).state("counts").get(subject.key, epoch=subject.old)
    assert found.epoch == subject.old


def _history(subject: Subject) -> None:
    found = subject.client.application(subject.name).state("counts").history(subject.key, limit=None)
    assert found.items


def _fork(subject: Subject) -> None:
    subject.client.applications.fork(subject.name, f"{subject.name}-fork-{next(_numbers)}", start=False)


class _Rollback:
    """Alternates between the old epoch and the last one."""

    def __init__(self) -> None:
        self._to_last: dict[str, bool] = {}

    def __call__(self, subject: Subject) -> None:
        place = f"{subject.client.url} {subject.name}"
        to_last = self._to_last.get(place, False)
        self._to_last[place] = not to_last
        rollback = subject.client.application(subject.name).rollback
        epoch = subject.last if to_last else subject.old
        plan = rollback.plan(epoch=epoch)
        assert rollback.to(epoch=epoch, confirm=plan.confirm).state == "succeeded"


OPERATIONS: dict[str, Operation] = {
    "look-up at the head": _look_up,
    "look-up at an old epoch": _look_up_old,
    "history of a key": _history,
    FORK: _fork,
    "rollback": _Rollback(),
}


def _results(name: str, local: Taken, remote: Taken) -> list[Result]:
    results = []
    shown = f"{name}, S3 at {DELAY_MS} ms a request"
    how = ""
    if name == next(iter(OPERATIONS)):
        how = (
            f"; {EPOCHS} epochs of {ROWS:,} rows, {KEYS:,} keys, the key changed in the first epoch only; bases after "
            f"{COMPACT_AFTER} epochs, the old epoch is {OLD}; median of {len(local.cold)} turns"
        )
    elif name == FORK:
        how = "; without a start of the fork"
    for state, ours, theirs in (("cold", remote.cold, local.cold), ("warm", remote.warm, local.warm)):
        compared = f"local store: {median(theirs) * 1000:.1f} ms{how if state == 'cold' else ''}"
        results.append(number(f"{shown}, {state}", median(ours) * 1000, "ms", compared, 1))
    requests = max(remote.requests, key=len)
    found = (
        f"{_described(requests)}; warm: {_described(max(remote.of_warm, key=len))}; "
        f"after the answer, for replicas: {counted(max(remote.later, key=len))}"
    )
    title = f"{shown}: requests"
    if name == FORK:
        return [*results, at_most(title, len(requests), 3, "", found, 0)]
    return [*results, number(title, len(requests), "", found, 0)]


def _described(requests: Sequence[Request]) -> str:
    return ", ".join(f"{number} {name}" for name, number in purposes(requests).most_common()) or "none"

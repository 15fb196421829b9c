"""A table of versions in memory, whose requests get lost, land late and meet those of other writers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from epochal.backends.tables.commit_protocol import HeadMoved, Table, TableHead
from epochal.backends.tables.restore_points import TableVersion
from epochal.contracts.backend import DecidedEpoch
from epochal.errors import OutcomeUnknown, SinkUnavailable


@dataclass(frozen=True)
class Version:
    """``rows``: epochs whose rows the version adds, by branch. ``markers``: of all branches, after it."""

    rows: tuple[tuple[str, int], ...]
    markers: dict[str, int]


@dataclass(frozen=True)
class Request:
    """A commit on top of ``parent`` versions. It lands if the table still has as many."""

    parent: int
    rows: tuple[tuple[str, int], ...]
    branch: str
    marker: int


@dataclass
class SimulatedTable(Table):
    """``meanwhile`` is called before each request reaches the table: other drivers and writers act there."""

    seed: random.Random
    faults: float = 0.0
    """Probability that a request or its answer is lost, delayed or misreported."""
    versions: list[Version] = field(default_factory=lambda: [Version((), {})])
    in_flight: list[Request] = field(default_factory=list)
    meanwhile: Callable[[], None] = lambda: None

    @property
    def subject(self) -> str:
        return "Sink 'out' (table:simulated)"

    def find(self, branch: str) -> SimulatedHead:
        self.meanwhile()
        if self.seed.random() < self.faults / 4:
            raise SinkUnavailable("The table cannot be read.")
        return SimulatedHead(self, len(self.versions), branch, self.versions[-1].markers.get(branch))

    def history(self) -> Iterator[Sequence[TableVersion]]:
        yield [
            TableVersion(
                number,
                number - 1 if number else None,
                next((branch for branch, _ in version.rows), ""),
                tuple(epoch for _, epoch in version.rows),
            )
            for number, version in reversed(list(enumerate(self.versions)))
        ]

    def land(self, request: Request) -> bool:
        """The compare-and-set."""
        if request.parent != len(self.versions):
            return False
        markers = {**self.versions[-1].markers, request.branch: request.marker}
        self.versions.append(Version(request.rows, markers))
        return True

    def land_late(self) -> None:
        """A delayed request reaches the table; no driver receives its answer."""
        if self.in_flight:
            self.land(self.in_flight.pop(self.seed.randrange(len(self.in_flight))))

    def another_writer(self) -> None:
        """A commit of another program, such as a compaction."""
        self.versions.append(Version((), self.versions[-1].markers))

    @property
    def rows(self) -> list[tuple[str, int]]:
        """Epochs whose rows the table shows, by branch, in the order of their versions."""
        return [each for version in self.versions for each in version.rows]


@dataclass(frozen=True)
class SimulatedHead(TableHead):
    table: SimulatedTable
    version: int
    branch: str
    shown: int | None

    @property
    def marker(self) -> int | None:
        return self.shown

    def commit(self, epochs: Sequence[DecidedEpoch]) -> None:
        rows = tuple((self.branch, each.epoch) for each in epochs if each.rows)
        request = Request(self.version, rows, self.branch, epochs[-1].epoch)
        self.table.meanwhile()
        seed, faults = self.table.seed, self.table.faults
        if seed.random() >= faults:
            if not self.table.land(request):
                raise HeadMoved("Another version has been committed.")
            return
        match seed.choice(("delayed", "answer lost", "conflict after success", "request lost")):
            case "delayed":
                self.table.in_flight.append(request)
            case "answer lost":
                self.table.land(request)
            case "conflict after success":
                self.table.land(request)
                raise HeadMoved("409")
        raise OutcomeUnknown("The connection was cut.")

"""The commit queue: epochs prepared by another version, refused rows, and sinks that collect epochs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from epochal.contracts.backend import Buffering, DecidedEpoch
from epochal.contracts.catalog import ManifestReference
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochKey, EpochScope
from epochal.contracts.source import Slice
from epochal.engine import commits
from epochal.engine.commits import CommitQueue, PreparedEpoch, drain
from epochal.engine.job import Participants
from epochal.engine.meter import Meter
from epochal.errors import RowRefused, SinkUnavailable
from epochal.snapshots.manifest import Manifest, SinkHandles, previous_extras
from epochal.snapshots.store import SnapshotStore
from epochal.testing.memory_catalog import MemoryCatalog, MemoryCatalogState
from tests.kit.manifests import plain_manifest
from tests.kit.programs import current_program
from tests.kit.simulation.pipeline import SimulatedSource, World


class RecordingSource(SimulatedSource):
    """Records the acknowledged slices."""

    def __init__(self, world: World) -> None:
        super().__init__(world, random.Random(1))
        self.acknowledged: list[Slice] = []

    def acknowledge(self, slice: Slice) -> None:
        self.acknowledged.append(slice)


def test_an_epoch_with_a_source_that_this_version_dropped_is_committed(tmp_path: Path) -> None:
    """After an upgrade by a restart, recovery (R3) finds an epoch that the previous version prepared."""
    catalog = MemoryCatalog(MemoryCatalogState(), 1)
    point = catalog.begin_attempt()
    kept = RecordingSource(World(SnapshotStore(str(tmp_path)), []))
    queue = CommitQueue(catalog, current_program(participants=Participants({"kept": kept})))
    slice = Slice(start={"position": 0}, end={"position": 1})
    manifest = plain_manifest(
        1,
        branch=point.branch,
        slices={"dropped": slice, "kept": slice},
    )
    reference = ManifestReference(branch=point.branch, epoch=1, path="1.json", sha256="0" * 64)
    catalog.open_epoch(1, None)
    catalog.prepare_epoch(1, None, reference, manifest.counts)
    queue.submit(EpochScope("application", EpochKey(point.branch, 1), 1, None), manifest)
    queue.step()
    assert queue.empty and catalog.state.epochs[1].state == "committed"
    assert kept.acknowledged == [slice]


class RefusingSink:
    """Refuses the rows of one epoch until they are dropped."""

    target = "t"
    buffering: Buffering | None = None

    def __init__(self, refused: int | None) -> None:
        self.refused = refused
        self.committed: list[int] = []
        self.tries = 0

    def commit_decided(self, epochs: Sequence[DecidedEpoch]) -> None:
        self.tries += 1
        for each in epochs:
            if each.epoch == self.refused and each.handles:
                raise RowRefused("The database refuses row id=5 (SQLSTATE 23514, column v).")
            self.committed.append(each.epoch)

    def abort(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        assert epoch.epoch == self.refused


def test_a_refused_row_stops_only_its_sink() -> None:
    """The other sink passes ``max_uncommitted_epochs``; dropping the refused epoch releases the stopped sink."""
    catalog = MemoryCatalog(MemoryCatalogState(), 1)
    point = catalog.begin_attempt()
    bad, good = RefusingSink(3), RefusingSink(None)
    program = current_program(participants=Participants({}, sinks={"bad": bad, "good": good}))  # type: ignore[dict-item]
    queue = CommitQueue(catalog, program)
    handle = Handle(owner="bad", subtask=0, rows=1, bytes=1, payload={})
    last = 3 * program.program.configuration.max_uncommitted_epochs
    for number in range(1, last + 1):
        assert queue.has_room
        manifest = plain_manifest(
            number,
            branch=point.branch,
            sinks={"bad": SinkHandles(kind="dbms", target="t", handles=(handle,))},
        )
        reference = ManifestReference(branch=point.branch, epoch=number, path=f"{number}.json", sha256="0" * 64)
        parent = EpochKey(point.branch, number - 1) if number > 1 else None
        catalog.open_epoch(number, parent)
        catalog.prepare_epoch(number, parent, reference, manifest.counts)
        queue.submit(EpochScope("orders", EpochKey(point.branch, number), 1, parent), manifest)
        queue.step()
    assert good.committed == list(range(1, last + 1))
    assert bad.committed == [1, 2] and catalog.state.epochs[2].state == "committed"
    assert bad.tries == 3  # a stopped sink is not retried with each epoch of the other sinks
    drain(queue, lambda seconds: None, lambda waiting: None)
    assert queue.settled and not queue.empty
    with pytest.raises(RowRefused, match=r"Sink 'bad' is stopped.*23514.*`epochal transaction abort orders bad 3`"):
        queue.check_refused()
    queue.give_up("bad", 3)
    queue.step()
    assert queue.empty and bad.committed == list(range(1, last + 1))
    queue.check_refused()


def test_a_stopped_sink_beside_one_that_collects_has_its_own_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "EPOCHS_BEHIND_A_STOPPED_SINK", 5)
    world = Collecting(Buffering(3600.0, most_epochs=50), refusing=RefusingSink(1))
    for _ in range(5 + world.ahead):
        assert world.queue.has_room
        world.prepare()
    assert not world.queue.has_room


def test_a_sink_that_is_slow_to_commit_what_it_collected_has_a_limit() -> None:
    world = Collecting(Buffering(3600.0, most_epochs=5))
    for _ in range(5 + world.ahead):
        assert world.queue.has_room
        world.prepare(steps=False)
    assert not world.queue.has_room


class CollectingSink:
    """Commits epochs in groups, and records them."""

    target = "table:orders"

    def __init__(self, limits: Buffering) -> None:
        self.buffering = limits
        self.groups: list[list[DecidedEpoch]] = []
        self.is_away = False

    def commit_decided(self, epochs: Sequence[DecidedEpoch]) -> None:
        if self.is_away:
            raise SinkUnavailable("The catalog does not answer.")
        self.groups.append(list(epochs))

    def abort(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        assert handles

    @property
    def numbers(self) -> list[list[int]]:
        return [[each.epoch for each in group] for group in self.groups]


class Collecting:
    """A queue with a collecting sink, and a clock."""

    def __init__(self, limits: Buffering, refusing: RefusingSink | None = None) -> None:
        self.now = 0.0
        self.catalog = MemoryCatalog(MemoryCatalogState(), 1)
        self.branch = self.catalog.begin_attempt().branch
        self.sink = CollectingSink(limits)
        sinks = {"out": self.sink} | ({} if refusing is None else {"refusing": refusing})
        program = current_program(participants=Participants({}, sinks=sinks))  # type: ignore[arg-type]
        self.ahead = program.program.configuration.epochs_ahead_of_commits
        self.queue = CommitQueue(self.catalog, program, meter=Meter(clock=lambda: self.now))
        self.most = program.program.configuration.max_uncommitted_epochs
        self._number = 0
        self._before: Manifest | None = None

    def prepare(self, rows: int = 1, bytes: int = 1, steps: bool = True, began: float | None = None) -> int:
        self._number += 1
        number = self._number
        self.queue.meter.took("E1", 0.0, number)
        handle = Handle(owner="out", subtask=0, rows=rows, bytes=bytes, payload={})
        refused = SinkHandles(kind="dbms", target="t", handles=(handle,))
        manifest = plain_manifest(
            number,
            branch=self.branch,
            sinks={
                "out": SinkHandles(kind="delta", target=self.sink.target, handles=(handle,)),
                "refusing": refused,
            },
            extras=previous_extras(self.branch, self._before, [self.sink.target]),
        )
        self._before = manifest
        reference = ManifestReference(branch=self.branch, epoch=number, path=f"{number}.json", sha256="0" * 64)
        parent = EpochKey(self.branch, number - 1) if number > 1 else None
        self.catalog.open_epoch(number, parent)
        self.catalog.prepare_epoch(number, parent, reference, manifest.counts)
        self.queue.submit(EpochScope("orders", EpochKey(self.branch, number), 1, parent), manifest, began)
        if steps:
            self.queue.step()
        return number


def test_the_time_in_which_earlier_epochs_are_retained_is_not_a_sinks_time() -> None:
    world = Collecting(Buffering(60.0))
    world.sink.buffering = None
    meter = world.queue.meter

    def retain(epoch: PreparedEpoch) -> None:
        if epoch.scope.epoch == 1:
            world.now += 5.0  # begins before the next epoch is decided
            world.prepare(began=10.0, steps=False)
            world.now += 7.0

    def commit_decided(epochs: Sequence[DecidedEpoch]) -> None:
        world.now += 2.0

    world.now = 10.0
    world.queue.retain = retain
    world.sink.commit_decided = commit_decided  # type: ignore[method-assign]
    world.prepare(began=9.0)
    world.queue.step()
    steps, parts = ([getattr(epoch, name) for epoch in meter.report().epochs] for name in ("steps", "parts"))
    assert [step["E5"] for step in steps] == [2.0, 9.0]
    assert [(part["sink"], sum(part.values())) for part in parts] == [(2.0, 3.0), (2.0, 16.0)]


def test_a_sink_collects_epochs_for_its_interval() -> None:
    world = Collecting(Buffering(60.0))
    for _ in range(3 * world.most):
        assert world.queue.has_room
        world.prepare()
        world.now += 1.0
    assert world.sink.groups == []
    world.now = 60.0
    world.queue.step()
    assert world.sink.numbers == [list(range(1, 3 * world.most + 1))]
    assert world.queue.empty
    assert all(epoch.state == "committed" for epoch in world.catalog.state.epochs.values())


def test_a_sink_receives_the_previous_epoch_with_rows() -> None:
    world = Collecting(Buffering(60.0))
    for rows in (1, 0, 2, 0, 0, 3):
        world.prepare(rows)
    world.queue.flush()
    world.queue.step()
    assert [each.previous for each in world.sink.groups[0]] == [None, 1, 1, 3, 3, 3]


@pytest.mark.parametrize("limits", [Buffering(60.0, most_epochs=3), Buffering(60.0, most_bytes=3)])
def test_a_limit_commits_before_the_interval(limits: Buffering) -> None:
    world = Collecting(limits)
    for _ in range(7):
        world.prepare()
    assert world.sink.numbers == [[1, 2, 3], [4, 5, 6]]


def test_a_stop_commits_what_was_collected() -> None:
    world = Collecting(Buffering(60.0))
    world.prepare()
    world.prepare()
    assert not world.queue.settled
    drain(world.queue, lambda seconds: None, lambda waiting: None)
    assert world.sink.numbers == [[1, 2]]
    assert world.queue.empty
    world.prepare()
    assert world.sink.numbers == [[1, 2]]  # later epochs are collected again


def test_a_table_that_is_away_limits_the_epochs() -> None:
    world = Collecting(Buffering(1.0))
    world.sink.is_away = True
    opened = 0
    while world.queue.has_room and opened < 100:
        world.prepare()
        opened += 1
        world.now += 1.0
        world.queue.step()
    assert opened == world.most
    assert world.queue.waiting["out"].error == "The catalog does not answer."
    world.sink.is_away = False
    world.queue.step()
    assert world.sink.numbers == [list(range(1, opened + 1))]


def test_an_epoch_of_a_group_is_given_up() -> None:
    world = Collecting(Buffering(60.0))
    for _ in range(3):
        world.prepare()
    world.queue.give_up("out", 2)
    world.queue.step()
    assert [(each.epoch, each.given_up, each.rows) for each in world.sink.groups[0]] == [
        (1, False, 1),
        (2, True, 0),
        (3, False, 1),
    ]
    assert world.queue.was_given_up("out", 2)

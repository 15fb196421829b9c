"""The protocol of table commits, with two drivers, late requests, unknown outcomes, groups of epochs and rollbacks."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from epochal.backends.tables.commit_protocol import Commit, Done, Stop, commit_decided, decide
from epochal.contracts.backend import DecidedEpoch
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochKey, EpochScope
from epochal.errors import EpochalError, SinkError
from tests.kit.simulated_table import SimulatedTable

STEPS = 40
SAMPLE, SEEDS = 2_000, 50_000
LARGEST_GROUP = 3


def decided(branch: str, epoch: int, rows: int, previous: int | None, given_up: bool = False) -> DecidedEpoch:
    scope = EpochScope("application", EpochKey(branch, epoch), 1, None)
    handles = () if given_up else (Handle(owner="out", subtask=0, rows=rows, bytes=rows, payload={}),)
    return DecidedEpoch(scope, handles, previous, given_up)


@dataclass
class Branch:
    """Decided epochs of a branch, in order, and how many of them the catalog has published."""

    name: str
    epochs: list[DecidedEpoch] = field(default_factory=list)
    published: int = 0
    given_up: set[int] = field(default_factory=set)

    def decide(self, seed: random.Random, number: int) -> None:
        previous = max((each.epoch for each in self.epochs if each.rows), default=None)
        self.epochs.append(decided(self.name, number, seed.choice((0, 1, 1, 2)), previous))


@dataclass
class World:
    """One application whose branches follow each other, and its drivers, all of which act as the leader."""

    seed: random.Random
    table: SimulatedTable
    branches: list[Branch] = field(default_factory=lambda: [Branch("main")])
    number: int = 0
    depth: int = 0

    def step(self) -> None:
        match self.seed.choice(("decide", "decide", "commit", "commit", "commit", "again", "late", "writer", "admin")):
            case "decide":
                self.number += self.seed.choice((1, 1, 2))
                self.branches[-1].decide(self.seed, self.number)
            case "commit":
                self.commit(self.branches[-1])
            case "again":  # a driver that has not noticed that it lost its lease
                self.commit_again(self.seed.choice(self.branches))
            case "late":
                self.table.land_late()
            case "writer":
                self.table.another_writer()
            case "admin":
                self.give_up() if self.seed.random() < 0.5 else self.roll_back()

    def meanwhile(self) -> None:
        """Other drivers act between the steps of a commit."""
        if self.depth < 3 and self.seed.random() < 0.2:
            self.depth += 1
            self.step()
            self.depth -= 1

    def commit(self, branch: Branch) -> None:
        group = branch.epochs[branch.published :][: self.seed.randint(1, LARGEST_GROUP)]
        first = branch.published
        if group and self.committed(group):
            branch.published = max(branch.published, first + len(group))

    def commit_again(self, branch: Branch) -> None:
        if branch.epochs:
            first = self.seed.randrange(len(branch.epochs))
            self.committed(branch.epochs[first : first + self.seed.randint(1, LARGEST_GROUP)])

    def committed(self, group: list[DecidedEpoch]) -> bool:
        refused: EpochalError | None = None
        try:
            commit_decided(self.table, group)
        except EpochalError as error:
            refused = error
        # A driver that commits an epoch before an earlier one is refused; every other driver must go on.
        assert refused is None or "Nothing was written" not in refused.message or self.is_early(group), refused
        return refused is None

    def is_early(self, group: list[DecidedEpoch]) -> bool:
        branch = next(each for each in self.branches if each.name == group[0].scope.branch)
        return group[0].epoch > branch.epochs[min(branch.published, len(branch.epochs) - 1)].epoch

    def give_up(self) -> None:
        """An administrator gives up the oldest epoch that is not committed."""
        branch = self.branches[-1]
        open_epochs = [each for each in branch.epochs[branch.published :] if each.rows]
        if open_epochs and open_epochs[0] is branch.epochs[branch.published]:
            first = branch.published
            branch.given_up.add(open_epochs[0].epoch)
            if self.committed([replace(open_epochs[0], handles=(), given_up=True)]):
                branch.published = max(branch.published, first + 1)

    def roll_back(self) -> None:
        """A rollback waits until everything is committed; the new branch has no marker."""
        if self.depth == 0 and self.branches[-1].published == len(self.branches[-1].epochs):
            self.branches.append(Branch(f"branch {len(self.branches)}"))

    def settle(self) -> None:
        self.table.faults = 0
        self.table.meanwhile = lambda: None
        branch = self.branches[-1]
        while branch.published < len(branch.epochs):
            self.commit(branch)
            self.table.land_late()
        while self.table.in_flight:
            self.table.land_late()

    def check(self) -> None:
        shown = Counter(self.table.rows)
        assert max(shown.values(), default=0) <= 1, f"rows twice: {shown}"
        for branch in self.branches:
            expected = [each.epoch for each in branch.epochs if each.rows]
            found = [epoch for name, epoch in self.table.rows if name == branch.name]
            assert found == sorted(found)
            missing = set(expected) - set(found)
            assert missing <= branch.given_up, f"rows lost: {missing}"
            assert set(found) <= set(expected)


def test_each_decided_epoch_appears_once(run_seed: int) -> None:
    for seed in range(run_seed, run_seed + SAMPLE):
        run(seed)


@pytest.mark.long
def test_each_decided_epoch_appears_once_for_every_seed() -> None:
    for seed in range(SEEDS):
        run(seed)


def run(seed: int) -> None:
    random_numbers = random.Random(seed)
    table = SimulatedTable(random_numbers, faults=random_numbers.choice((0.0, 0.2, 0.5)))
    world = World(random_numbers, table)
    table.meanwhile = world.meanwhile
    try:
        for _ in range(STEPS):
            world.step()
        world.settle()
        world.check()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize(
    ("marker", "epochs", "expected"),
    [
        (None, [(3, 1, None)], [3]),
        (3, [(3, 1, None)], Done()),
        (7, [(3, 1, None), (5, 1, 3)], Done()),
        (3, [(3, 1, None), (5, 1, 3)], [5]),
        (2, [(3, 1, 2), (4, 0, 3), (5, 1, 3)], [3, 5]),
        (None, [(3, 0, None)], Done()),
        (None, [(5, 1, 3)], Stop),
        (2, [(5, 1, 3)], Stop),
        (4, [(5, 1, 3)], Stop),
        (4, [(3, 1, None), (5, 1, 3)], Stop),
        (1, [(3, 1, None)], Stop),
    ],
)
def test_decision(
    marker: int | None, epochs: list[tuple[int, int, int | None]], expected: list[int] | Done | type[Stop]
) -> None:
    found = decide(marker, [decided("main", *each) for each in epochs])
    if isinstance(expected, list):
        assert isinstance(found, Commit)
        assert [each.epoch for each in found.epochs] == expected
    elif isinstance(expected, Done):
        assert found == expected
    else:
        assert isinstance(found, Stop)


@pytest.mark.parametrize("versions_lost", [1, 2])
def test_a_table_that_was_restored_stops_the_sink(versions_lost: int) -> None:
    table = SimulatedTable(random.Random(0))
    commit_decided(table, [decided("main", 1, 1, None)])
    commit_decided(table, [decided("main", 2, 1, 1)])
    del table.versions[-versions_lost:]
    before = list(table.versions)
    with pytest.raises(SinkError, match=r"cannot commit epoch 3.*epoch 2 was committed to it.*epochal rollback"):
        commit_decided(table, [decided("main", 3, 1, 2)])
    assert table.versions == before

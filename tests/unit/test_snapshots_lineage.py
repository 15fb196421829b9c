"""Chains read back to the last bases equal chains extended epoch by epoch, also across a fork."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark import cloudpickle

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.errors import FileMissing
from epochal.snapshots.chain import Chain, Link
from epochal.snapshots.continuation import revived_columns
from epochal.snapshots.lineage import EMPTY, extend, history, read_chains
from epochal.snapshots.manifest import BaseFile, DeltaFile, FileReference
from epochal.snapshots.store import SnapshotStore
from epochal.state.table import Column, StateKind, StateTable
from tests.kit.manifests import plain_manifest


def delta(table: str, name: str) -> DeltaFile:
    return DeltaFile(table=table, subtask=0, parallelism=1, file=_file(name))


def base(table: str, at: EpochKey) -> BaseFile:
    return BaseFile(table=table, at=at, first_group=0, last_group=15, file=_file(f"base of {table} at {at}"))


def _file(name: str) -> FileReference:
    return FileReference(path=name, sha256="0" * 64, bytes=1, rows=1)


def table_of(id: str, *values: str) -> StateTable:
    columns = tuple(Column(name=name, type="int") for name in values)
    return StateTable(id=id, operator=id, kind=StateKind.VALUE, key=(Column(name="k", type="int"),), value=columns)


class Line:
    """Manifests of one branch in order, with the extended chains of ``t`` and ``u``."""

    def __init__(self, store: SnapshotStore, branch: str = "main") -> None:
        self.store, self.branch = store, branch
        self.head: ManifestReference | None = None
        self.chains: dict[str, Chain] = {"t": EMPTY, "u": EMPTY}

    def add(
        self,
        epoch: int,
        *changed: str,
        bases: EpochKey | None = None,
        declared: Sequence[str] = ("t", "u"),
        tables: Sequence[StateTable] | None = None,
    ) -> EpochKey:
        manifest = plain_manifest(
            epoch,
            application="a",
            branch=self.branch,
            parent=self.head,
            max_parallelism=16,
            tables=tuple(tables if tables is not None else map(table_of, declared)),
            deltas=tuple(delta(table, f"{table} {self.branch} {epoch}") for table in changed),
            bases=() if bases is None else (base("t", bases), base("u", bases)),
            created_at=datetime(2013, 1, 1, tzinfo=UTC),
        )
        self.chains = {table: extend(chain, table, manifest) for table, chain in self.chains.items()}
        self.head = self.store.write_manifest(manifest)
        return manifest.key

    def fork(self, branch: str) -> Line:
        other = Line(self.store, branch)
        other.head, other.chains = self.head, dict(self.chains)
        return other

    def check(self) -> None:
        assert read_chains(self.store, self.head, ["t", "u"]) == self.chains


@pytest.fixture
def line(tmp_path: Path) -> Line:
    return Line(SnapshotStore(str(tmp_path)))


def names(chain: Chain) -> list[str]:
    return [delta.file.path for link in chain.links for delta in link.deltas]


def test_an_application_without_epochs_has_empty_chains(line: Line) -> None:
    line.check()
    assert line.chains["t"].at is None
    assert line.chains["t"].after(None) == ()
    assert list(history(line.store, None)) == []


def test_epochs_without_changes_are_links_of_the_chain(line: Line) -> None:
    for epoch, tables in ((1, "t"), (2, "tu"), (4, ""), (7, "u")):
        line.add(epoch, *tables)
        line.check()
    chain = line.chains["t"]
    assert [link.key.epoch for link in chain.links] == [1, 2, 4, 7]
    assert names(chain) == ["t main 1", "t main 2"]
    assert chain.at == EpochKey("main", 7)


def test_a_chain_begins_at_the_epoch_of_its_bases(line: Line) -> None:
    for epoch in (1, 2, 3):
        line.add(epoch, "t", "u")
    line.add(4, "t", bases=EpochKey("main", 2))
    line.check()
    chain = line.chains["t"]
    assert (chain.base_at, chain.bases) == (EpochKey("main", 2), (base("t", EpochKey("main", 2)),))
    assert names(chain) == ["t main 3", "t main 4"]
    line.add(5, "t")
    line.add(6, bases=EpochKey("main", 5))
    line.check()
    assert names(line.chains["t"]) == []
    assert line.chains["u"].at == EpochKey("main", 6)


def test_a_cache_catches_up_only_from_an_epoch_of_the_chain(line: Line) -> None:
    keys = [line.add(epoch, "t") for epoch in (1, 2, 3)]
    line.add(4, "t", bases=keys[1])
    chain = line.chains["t"]
    assert [link.key.epoch for link in chain.after(keys[1]) or ()] == [3, 4]
    assert [link.key.epoch for link in chain.after(keys[2]) or ()] == [4]
    assert chain.after(EpochKey("main", 4)) == ()
    for unknown in (None, keys[0], EpochKey("main", 5), EpochKey("other", 3)):
        assert chain.after(unknown) is None


@pytest.mark.claim("Thesis, 4.3.2")
def test_a_fork_continues_from_the_files_of_its_parent(line: Line) -> None:
    for epoch in (1, 2):
        line.add(epoch, "t")
    fork = line.fork("fork")
    line.add(3, "t")
    fork.add(3, "t", "u")
    fork.check()
    assert names(fork.chains["t"]) == ["t main 1", "t main 2", "t fork 3"]
    fork.add(4, bases=EpochKey("main", 2))
    fork.check()
    assert names(fork.chains["t"]) == ["t fork 3"]
    assert [str(manifest.key) for manifest in history(fork.store, fork.head)] == [
        "fork/4",
        "fork/3",
        "main/2",
        "main/1",
    ]


def test_an_epoch_that_is_not_the_next_is_refused(line: Line) -> None:
    line.add(1, "t")
    early = line.fork("main")
    line.add(2, "t")
    line.chains = early.chains
    with pytest.raises(ValueError, match="main/3 comes after main/2, not after main/1"):
        line.add(3)


def test_bases_outside_the_chain_are_refused(line: Line) -> None:
    line.add(1, "t")
    with pytest.raises(ValueError, match="bases at main/9"):
        line.add(2, bases=EpochKey("main", 9))


def test_a_missing_manifest_is_named(tmp_path: Path) -> None:
    store = SnapshotStore(str(tmp_path))
    head = ManifestReference(branch="main", epoch=9, path="main/manifests/gone.json", sha256="9" * 64)
    with pytest.raises(FileMissing, match=r"gone\.json, of snapshot main/9"):
        read_chains(store, head, ["t"])


def test_a_table_that_is_dropped_and_declared_again_begins_empty(line: Line) -> None:
    line.add(1, "t", "u")
    at = line.add(2, "t")
    line.add(3, "u", bases=at, declared=["u"])
    line.add(4, "t", "u")

    chains = read_chains(line.store, line.head, ["t", "u"])

    assert chains["t"].bases == () and chains["t"].base_at == at
    assert [len(link.deltas) for link in chains["t"].links] == [0, 1]
    assert [len(link.deltas) for link in chains["u"].links] == [1, 1]
    assert len(chains["u"].bases) == 1


def test_a_dropped_column_cannot_return_while_its_files_are_in_the_chain(line: Line) -> None:
    with_note, without = table_of("t", "note"), table_of("t", "n")
    line.add(1, "t", tables=[with_note])
    line.add(2, "t", tables=[without])
    assert line.head is not None
    (problem,) = revived_columns(line.store, line.head, [table_of("t", "n", "note")])
    assert "'note' was dropped after epoch 1" in problem
    assert list(revived_columns(line.store, line.head, [table_of("t", "n", "other")])) == []

    line.add(3, "t", bases=EpochKey("main", 2), tables=[without])
    assert list(revived_columns(line.store, line.head, [table_of("t", "n", "note")])) == []


def link_of(epoch: int, deltas: int) -> Link:
    return Link(EpochKey("main", epoch), tuple(delta("t", f"{epoch} {number}") for number in range(deltas)))


def shipped(chain: Chain) -> Chain:
    found = pickle.loads(cloudpickle.dumps(chain))  # type: ignore[no-untyped-call]
    assert isinstance(found, Chain)
    return found


def test_chains_are_equal_after_shipping_and_share_their_cached_links() -> None:
    at = EpochKey("main", 1)
    chain = Chain(at, (base("t", at),), (link_of(2, 0), link_of(3, 2)))
    longer = Chain(at, chain.bases, (*chain.links, link_of(4, 1)))
    first, second = shipped(chain), shipped(longer)
    assert (first, second) == (chain, longer)
    assert all(one is other for one, other in zip(first.links, second.links, strict=False))


def test_large_links_are_not_cached_by_tasks() -> None:
    chain = Chain(None, (), (link_of(1, 500),))
    first, second = shipped(chain), shipped(chain)
    assert first == second == chain
    assert first.links[0] is not second.links[0]

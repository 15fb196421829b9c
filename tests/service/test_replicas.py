"""Replicas of real snapshots: their rows are exactly those of one committed epoch."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epochal.backends.catch_up import Step
from epochal.backends.lmdb_environment import Environment
from epochal.backends.lmdb_long_keys import LONGEST
from epochal.backends.recent import EncodedChanges
from epochal.contracts.identity import EpochKey
from epochal.errors import FileCorrupt, FileMissing
from epochal.service.domain.snapshots import ApplicationHead
from epochal.service.runtime.replicas.applying import catch_up
from epochal.service.runtime.replicas.changes import manifests_between
from epochal.service.runtime.replicas.follower import Follower
from epochal.service.runtime.replicas.generations import Generations
from epochal.service.runtime.replicas.index import ReplicaIndex
from epochal.service.runtime.replicas.replica import Replica
from epochal.service.runtime.replicas.row_format import RowFormat
from epochal.snapshots import store as store_module
from epochal.snapshots.store import SnapshotStore
from tests.service.written_branches import DELAYS, WrittenBranch, held


@pytest.fixture
def branch(tmp_path: Path) -> WrittenBranch:
    return WrittenBranch(SnapshotStore(str(tmp_path / "store")))


@pytest.fixture
def generations(tmp_path: Path) -> Any:
    made = Generations(tmp_path / "replicas" / "delays")
    yield made
    made.close()


def test_replica_follows_each_committed_epoch(branch: WrittenBranch, generations: Generations) -> None:
    branch.epoch([("JFK", "LAX", 1, 5.0), ("LGA", "ATL", 2, None)])
    branch.epoch([("JFK", "LAX", 3, 9.5), ("EWR", "BOS", None, 1.0)], deletes=[("LGA", "ATL")])
    branch.epoch(deletes=[("JFK", "LAX"), ("no", "row")])
    for head in branch.heads:
        replica = catch_up(generations, branch.store, head, DELAYS)
        assert held(replica) == (head.key, branch.expected[head.key])
        written = replica.environment.info()["last_txnid"]
        assert catch_up(generations, branch.store, head, DELAYS) is replica
        assert replica.environment.info()["last_txnid"] == written


def test_new_replica_is_built_from_bases_and_later_deltas(branch: WrittenBranch, generations: Generations) -> None:
    for number in range(5):
        branch.epoch([("JFK", "LAX", number, 0.0), (f"A{number}", "X", number, 1.0)])
    branch.epoch([("B", "B", 1, 1.0)], deletes=[("A1", "X")], bases=True)
    branch.epoch([("C", "C", 1, 1.0)])
    catch_up(generations, branch.store, branch.head, DELAYS)
    assert held(generations.current) == (branch.head.key, branch.expected[branch.head.key])


def test_replica_follows_across_a_compaction_by_deltas(branch: WrittenBranch, generations: Generations) -> None:
    branch.epoch([("JFK", "LAX", 1, 0.0)])
    catch_up(generations, branch.store, branch.head, DELAYS)
    mark = branch.head.key
    branch.epoch([("LGA", "ATL", 1, 0.0)])
    branch.epoch([("LGA", "ATL", 2, 0.0)], bases=True)
    between = manifests_between(branch.store, branch.head, mark)
    assert between is not None and [manifest.epoch for manifest in between] == [2, 3]
    catch_up(generations, branch.store, branch.head, DELAYS)
    assert held(generations.current) == (branch.head.key, branch.expected[branch.head.key])


@pytest.mark.parametrize("missing", ["manifest", "deltas"])
def test_replica_is_rebuilt_when_its_next_files_were_collected(
    branch: WrittenBranch, generations: Generations, missing: str
) -> None:
    branch.epoch([("JFK", "LAX", 1, 0.0)])
    catch_up(generations, branch.store, branch.head, DELAYS)
    for number in range(4):
        branch.epoch([("LGA", "ATL", number, 0.0)])
    branch.epoch([("B", "B", 1, 1.0)], bases=True)
    manifest = branch.store.read_manifest(branch.heads[1])
    if missing == "manifest":
        store_module._manifests.clear()
        branch.store.delete(branch.heads[1].path)
    for delta in manifest.deltas:
        branch.store.delete(delta.file.path)
    catch_up(generations, branch.store, branch.head, DELAYS)
    assert held(generations.current) == (branch.head.key, branch.expected[branch.head.key])


def test_replica_of_another_branch_is_rebuilt(branch: WrittenBranch, generations: Generations) -> None:
    branch.epoch([("JFK", "LAX", 1, 0.0)])
    fork = WrittenBranch(branch.store, "fork", list(branch.heads), dict(branch.expected))
    branch.epoch([("only", "main", 1, 0.0)])
    fork.epoch([("only", "fork", 1, 0.0)])
    catch_up(generations, branch.store, branch.head, DELAYS)
    catch_up(generations, fork.store, fork.head, DELAYS)
    assert held(generations.current) == (fork.head.key, fork.expected[fork.head.key])


def test_long_keys_are_found_distinguished_scanned_and_deleted(branch: WrittenBranch, generations: Generations) -> None:
    long, longer = "x" * LONGEST, "x" * (LONGEST + 100)
    branch.epoch([(long, "A", 1, 0.0), (long, "B", 2, 0.0), (longer, "A", 3, 0.0), ("short", "A", 4, 0.0)])
    branch.epoch(deletes=[(long, "B")])
    format = RowFormat(DELAYS)
    replica = catch_up(generations, branch.store, branch.heads[0], DELAYS)
    keys = [format.encode_key(key) for key in [(long, "A"), (long, "B"), (longer, "A"), (longer, "B")]]
    found = replica.get_many(keys)
    assert found is not None and [value is not None for value in found.values] == [True, True, True, False]
    assert [key for key, _ in replica.scan(format.encode_key((long,)))[1]] == keys[:2]
    catch_up(generations, branch.store, branch.head, DELAYS)
    assert held(generations.current) == (branch.head.key, branch.expected[branch.head.key])


def test_keys_near_the_limit_are_stored_as_executors_store_them(
    branch: WrittenBranch, generations: Generations, tmp_path: Path
) -> None:
    encode = RowFormat(DELAYS).encode_key
    framing = len(encode(("", "A")))
    origins = ["x" * (length - framing) for length in range(LONGEST - 2, LONGEST + 3)]
    branch.epoch([(origin, "A", 1, 0.0) for origin in origins])
    replica = catch_up(generations, branch.store, branch.head, DELAYS)
    keys = [encode((origin, "A")) for origin in origins]
    assert [len(key) for key in keys] == [509, 510, 511, 512, 513]
    found = replica.get_many(keys)
    assert found is not None
    environment = Environment(tmp_path / "executor", [DELAYS.id])
    changes = EncodedChanges(np.zeros(len(keys), np.int32), keys, found.values)
    assert environment.apply(Step(branch.head.key, True, {DELAYS.id: (changes,)}), 0, None)

    with replica.environment.begin() as original:
        rows = [row for database in (replica.rows, replica.long_rows) for row in original.cursor(database)]
    with environment._environment.begin() as cached:
        assert sorted(rows) == list(cached.cursor(environment._databases[DELAYS.id]))
    assert [len(key) for key, _ in sorted(rows)].count(LONGEST) == 3


def test_readers_see_one_epoch_while_the_replica_advances(branch: WrittenBranch, generations: Generations) -> None:
    names = [f"R{number}" for number in range(300)]
    for number in range(40):
        branch.epoch([(name, "X", number, 0.0) for name in names])
    format = RowFormat(DELAYS)
    keys = [format.encode_key((name, "X")) for name in names]
    replica = catch_up(generations, branch.store, branch.heads[0], DELAYS)
    torn: list[tuple[EpochKey, set[int]]] = []
    epochs_seen: set[int] = set()
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            found = replica.get_many(keys)
            assert found is not None
            counts = {format._values.decode_one(value)["flights"] for value in found.values if value is not None}
            epochs_seen.add(found.at.epoch)
            if counts != {found.at.epoch - 1}:
                torn.append((found.at, counts))

    reader = threading.Thread(target=read)
    reader.start()
    for head in branch.heads:
        catch_up(generations, branch.store, head, DELAYS)
    done.set()
    reader.join()
    assert not torn
    assert epochs_seen


@pytest.mark.parametrize("damage", ["garbage", "truncated", "empty", "keys of format 1"])
def test_damaged_replica_is_rebuilt(branch: WrittenBranch, tmp_path: Path, damage: str) -> None:
    branch.epoch([(f"R{number}", "X", number, 0.0) for number in range(2000)])
    directory = tmp_path / "replicas"
    directory.mkdir()
    index = ReplicaIndex.open(directory / "index")
    follower = Follower(branch.store, directory, "main")
    head = ApplicationHead("flights", "main", branch.head, ())
    assert follower.follow(head)
    follower.publish(index, "flights")
    folder = follower.seen.tables["delays"].replica.directory
    follower.close()
    data = folder / "data.mdb"
    if damage == "garbage":
        data.write_bytes(b"\x99" * 20_000)
    elif damage == "truncated":
        with data.open("r+b") as file:
            file.truncate(3 * 4096)
    elif damage == "empty":
        data.write_bytes(b"")
    else:
        earlier = Replica.open(folder)
        with earlier.environment.begin(write=True) as transaction:
            transaction.put(b"format", b"2", db=earlier.about)
            transaction.put(b"R1\0X\0", b"of format 1", db=earlier.rows)
        earlier.close()
    index.retract()
    again = Follower(branch.store, directory, "main", index.left("flights"))
    assert not again.seen.tables
    assert again.follow(head)
    assert held(again.seen.tables["delays"].replica) == (branch.head.key, branch.expected[branch.head.key])
    assert again.seen.tables["delays"].replica.directory != folder
    again.close()
    index.close()


@pytest.mark.parametrize(("damage", "error"), [("corrupt", FileCorrupt), ("missing", FileMissing)])
def test_unreadable_snapshot_keeps_the_replica_at_its_epoch(
    branch: WrittenBranch, tmp_path: Path, damage: str, error: type[Exception]
) -> None:
    branch.epoch([("JFK", "LAX", 1, 0.0)])
    follower = Follower(branch.store, tmp_path / "replicas", "main")
    assert follower.follow(ApplicationHead("flights", "main", branch.head, ()))
    branch.epoch([("JFK", "LAX", 2, 0.0), ("LGA", "ATL", 2, 0.0)])
    delta = Path(branch.store.location(branch.store.read_manifest(branch.head).deltas[1].file.path))
    original = delta.read_bytes()
    if damage == "corrupt":
        delta.write_bytes(original[:-1] + b"\x00")
    else:
        delta.unlink()
    head = ApplicationHead("flights", "main", branch.head, ())
    assert follower.follow(head)
    assert not follower.follow(head), "the problem is reported once"
    problem = follower.seen.problem
    assert isinstance(problem, error)
    assert delta.name in str(problem)
    replica = follower.seen.tables["delays"].replica
    assert held(replica) == (branch.heads[0].key, branch.expected[branch.heads[0].key])
    delta.write_bytes(original)
    assert follower.follow(head)
    assert not follower.seen.problem
    assert held(replica) == (branch.head.key, branch.expected[branch.head.key])
    replica.close()

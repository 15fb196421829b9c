"""Generations of replicas, and their readers in other processes than the writer: real LMDB, real snapshots."""

from __future__ import annotations

import gc
import os
import random
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from epochal.contracts.identity import EpochKey
from epochal.errors import EnvironmentProblem, FileCorrupt, FileMissing, StorageFull
from epochal.service.domain.snapshots import ApplicationHead
from epochal.service.runtime.replicas import changes as changes_module
from epochal.service.runtime.replicas import claim as claim_module
from epochal.service.runtime.replicas import replica as replica_module
from epochal.service.runtime.replicas.applying import catch_up
from epochal.service.runtime.replicas.claim import claim
from epochal.service.runtime.replicas.generations import Generations
from epochal.service.runtime.replicas.replica import Replica
from epochal.service.runtime.replicas.replicas import INDEX, Replicas, allow_open_files
from epochal.service.runtime.replicas.row_format import RowFormat
from epochal.snapshots import store as store_module
from epochal.snapshots.store import SnapshotStore
from tests.kit.manifests import plain_manifest
from tests.service.written_branches import DELAYS, WrittenBranch, held

KEY = RowFormat(DELAYS).encode_key(("JFK", "LAX"))


class Heads:
    """The head of each application, in place of a catalog."""

    def __init__(self, **branches: WrittenBranch) -> None:
        self.branches = branches

    def heads(self) -> Sequence[ApplicationHead]:
        return [ApplicationHead(name, branch.name, branch.head, ()) for name, branch in self.branches.items()]


@pytest.fixture
def branch(tmp_path: Path) -> WrittenBranch:
    made = WrittenBranch(SnapshotStore(str(tmp_path / "store")))
    made.epoch([("JFK", "LAX", 1, 0.0)])
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "replicas"
    made.mkdir()
    return made


@contextmanager
def applier(folder: Path, heads: Heads, store: SnapshotStore) -> Iterator[Replicas]:
    """Replicas that make a round only when a test calls it."""
    replicas = Replicas(folder.parent, store, heads, None, claimed=folder)  # type: ignore[arg-type]
    replicas._index = replicas._open_index()
    try:
        yield replicas
    finally:
        replicas.close()


WORKER = """
import sys
from pathlib import Path
from epochal.service.runtime.replicas.shared import SharedReplicas
from epochal.snapshots.store import SnapshotStore
replicas = SharedReplicas(Path(sys.argv[1]), SnapshotStore(sys.argv[2]))
replicas.open()
kept = None
for line in sys.stdin:
    verb, application = line.split()
    seen = replicas.application(application)
    if verb == "keep":
        kept = seen.tables["delays"].replica
    followed = None if seen is None else seen.tables.get("delays")
    replica = kept if verb == "kept" else followed and followed.replica
    found = None if replica is None else replica.get(bytes.fromhex(sys.argv[3]))
    value = None if found is None or found[1] is None else followed.format.value_object(found[1])["flights"]
    print(
        seen and seen.at and seen.at.epoch,
        found and str(found[0]),
        value,
        replica and replica.directory.name,
        seen and seen.problem and f"{seen.problem.slug}: {seen.problem.message}",
        replicas.is_current(),
        sep="|",
        flush=True,
    )
"""


class Worker:
    """A process that reads replicas, since LMDB opens each environment once in a process."""

    def __init__(self, folder: Path, store: SnapshotStore) -> None:
        command = [sys.executable, "-c", WORKER, str(folder), store.location(""), KEY.hex()]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, verb: str = "get", application: str = "flights") -> list[str]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{verb} {application}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().rstrip("\n").split("|")

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def test_reader_in_another_process_sees_each_published_epoch(
    branch: WrittenBranch, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_module, "LEAST_MAP_BYTES", 256 << 10)
    heads = Heads(flights=branch)
    with applier(folder, heads, branch.store) as replicas:
        replicas._round(heads.heads())
        with Worker(folder, branch.store) as worker:
            at, found, value, initial, problem, _ = worker.ask("keep")
            assert (at, found, value, problem) == ("1", "main/1", "1", "None")

            branch.epoch([("JFK", "LAX", 2, 0.0)])
            replicas._round(heads.heads())
            assert worker.ask()[:4] == ["2", "main/2", "2", initial]

            # More data than the map has room for: a larger generation. Readers of the smaller one continue.
            branch.epoch([(f"R{number}" * 20, "X" * 100, number, 0.0) for number in range(5000)])
            replicas._round(heads.heads())
            at, found, value, second, _, _ = worker.ask()
            assert (at, found, value) == ("3", "main/3", "2") and second != initial
            assert worker.ask("kept")[1:4] == ["main/2", "2", initial]
            assert [path.name for path in (folder / "main" / "delays").iterdir()] == [second]
            replica = replicas.application("flights").tables["delays"].replica  # type: ignore[union-attr]
            assert held(replica) == (branch.head.key, branch.expected[branch.head.key])
            assert replica.map_bytes > 256 << 10

            # A missing delta, then another branch.
            branch.epoch([("JFK", "LAX", 4, 0.0)])
            for delta in branch.store.read_manifest(branch.heads[-1]).deltas:
                branch.store.delete(delta.file.path)
            branch.epoch([("JFK", "LAX", 5, 0.0)], bases=False)
            replicas._round(heads.heads())
            at, _, value, third, problem, _ = worker.ask()
            assert (at, value, third) == ("3", "2", second) and "file-missing: " in problem

            fork = WrittenBranch(branch.store, "fork", branch.heads[:3], dict(branch.expected))
            fork.epoch([("JFK", "LAX", 7, 0.0)])
            heads.branches["flights"] = fork
            replicas._round(heads.heads())
            assert worker.ask()[:3] == ["4", "fork/4", "7"]
            assert worker.ask()[4] == "None"
            heads.branches.clear()
            replicas._round(heads.heads())
            assert worker.ask()[:3] == ["None", "None", "None"]


def test_rolled_back_state_is_hidden_until_the_new_branch_is_built(branch: WrittenBranch, folder: Path) -> None:
    branch.epoch([("JFK", "LAX", 2, 0.0)])
    heads = Heads(flights=branch)
    with applier(folder, heads, branch.store) as replicas:
        replicas._round(heads.heads())
        fork = WrittenBranch(branch.store, "fork", branch.heads[:1], dict(branch.expected))
        fork.epoch([("JFK", "LAX", 7, 0.0)])
        missing = [fork.store.read_manifest(fork.head).deltas[0].file.path]
        original = Path(branch.store.location(missing[0])).read_bytes()
        Path(branch.store.location(missing[0])).write_bytes(original[:-1] + b"\0")
        heads.branches["flights"] = fork
        replicas._round(heads.heads())
        with Worker(folder, branch.store) as worker:
            at, found, _, _, problem, _ = worker.ask()
            assert (at, found) == ("None", "None") and problem.startswith(FileCorrupt.slug)


def test_applier_continues_where_a_killed_one_stopped(branch: WrittenBranch, folder: Path) -> None:
    """Readers continue in the meantime. After a restart, no older state is returned before the first round."""
    heads = Heads(flights=branch)
    with applier(folder, heads, branch.store) as replicas:
        replicas._round(heads.heads())
        generation = replicas.application("flights").tables["delays"].replica.directory  # type: ignore[union-attr]
    branch.epoch([("JFK", "LAX", 2, 0.0)])
    with Worker(folder, branch.store) as worker:
        assert worker.ask()[:3] == ["1", "main/1", "1"]
        with applier(folder, heads, branch.store) as replicas:
            manifest = branch.store.location(branch.head.path)
            os.rename(manifest, manifest + ".aside")
            store_module._manifests.clear()
            replicas._round(heads.heads())
            assert worker.ask()[:3] == ["1", "main/1", "1"], "an unreadable store must not remove replicas"
            assert worker.ask()[4].startswith(FileMissing.slug)
            os.rename(manifest + ".aside", manifest)
            replicas._round(heads.heads())
            assert worker.ask()[:4] == ["2", "main/2", "2", generation.name]
        with applier(folder, heads, branch.store) as replicas:
            replicas._index.retract()
            assert worker.ask()[:2] == ["None", "None"]
            replicas._round(heads.heads())
            assert worker.ask()[:4] == ["2", "main/2", "2", generation.name]
            assert worker.ask()[5] == "True"
        (folder / INDEX).rename(folder / "aside")
        assert worker.ask()[5] == "False", "the index was replaced, so this process must reopen it"


@pytest.mark.alternating(3)
def test_readers_never_return_an_older_epoch_than_other_readers(
    branch: WrittenBranch, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process applies epochs, grows maps and rebuilds replicas meanwhile. The value of the key is the number of
    the epoch that wrote it."""
    monkeypatch.setattr(replica_module, "LEAST_MAP_BYTES", 128 << 10)
    monkeypatch.setattr(changes_module, "LONGEST_WALK", 3)
    heads, chance, finished = Heads(flights=branch), random.Random(7), threading.Event()

    def apply(replicas: Replicas) -> None:
        for _ in range(30):
            if finished.is_set():
                return
            for _ in range(chance.choice([1, 1, 2, 5])):
                number = branch.head.epoch + 1
                more = [(f"R{number}-{row}", "X" * 50, row, 0.0) for row in range(chance.choice([0, 100]))]
                branch.epoch([("JFK", "LAX", number, 0.0), *more])
            replicas._round(heads.heads())
        finished.set()

    with applier(folder, heads, branch.store) as replicas:
        replicas._round(heads.heads())
        thread = threading.Thread(target=apply, args=[replicas])
        with ExitStack() as stack, Worker(folder, branch.store) as one, Worker(folder, branch.store) as other:
            one.ask(), other.ask()
            thread.start()
            stack.callback(thread.join)
            stack.callback(finished.set)
            last, generations, answers = 1, set(), 0
            while not finished.is_set():
                for worker in (one, other):
                    at, found, value, generation, problem, _ = worker.ask()
                    assert (problem, found) == ("None", f"main/{value}")
                    assert max(last, int(at)) <= int(value), "the index must not be ahead of the replica"
                    last, answers = int(value), answers + 1
                    generations.add(generation)
            thread.join()
            assert one.ask()[2] == other.ask()[2] == str(branch.head.epoch)
        assert answers > 20 and len(generations) > 3
        seen = replicas.application("flights")
        assert seen is not None and held(seen.tables["delays"].replica)[1] == branch.expected[branch.head.key]
        gc.collect()
        mapped = {part for part in Path("/proc/self/maps").read_text().split() if part.endswith("data.mdb")}
        assert {Path(part).parent.name for part in mapped if str(folder) in part} <= {INDEX, generation}


def test_killed_readers_release_their_pages(branch: WrittenBranch, tmp_path: Path) -> None:
    generations = Generations(tmp_path / "delays")
    replica = catch_up(generations, branch.store, branch.head, DELAYS)
    script = (
        "import lmdb, os, signal, sys\n"
        "environment = lmdb.open(sys.argv[1], readonly=True, map_size=0, max_dbs=4)\n"
        "transaction = environment.begin()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.Popen([sys.executable, "-c", script, str(replica.directory)])
    killed.wait()
    assert f" {killed.pid} " in replica.environment.readers()
    branch.epoch([("JFK", "LAX", 2, 0.0)])
    catch_up(generations, branch.store, branch.head, DELAYS)
    assert f" {killed.pid} " not in replica.environment.readers()
    generations.close()


@pytest.mark.parametrize("map_grows", [False, True])
def test_full_disk_is_reported_and_lookups_continue(
    branch: WrittenBranch, tmp_path: Path, map_grows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if map_grows:
        monkeypatch.setattr(replica_module, "LEAST_MAP_BYTES", 256 << 10)
    generations = Generations(tmp_path / "delays")
    replica = catch_up(generations, branch.store, branch.head, DELAYS)
    branch.epoch([(f"R{number}" * 20, "X" * 100, number, 0.0) for number in range(5000)])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300 << 10, before[1]))
    try:
        with pytest.raises((StorageFull, EnvironmentProblem), match=f"{generations.directory}.*Look-ups continue"):
            catch_up(generations, branch.store, branch.head, DELAYS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert held(generations.current) == (branch.heads[0].key, branch.expected[branch.heads[0].key])
    assert held(catch_up(generations, branch.store, branch.head, DELAYS)) == (
        branch.head.key,
        branch.expected[branch.head.key],
    )
    assert held(replica)[0] == (branch.heads[0].key if map_grows else branch.head.key)
    generations.close()


def test_folder_belongs_to_one_process_and_one_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "replicas"
    (directory / "a-branch-of-an-earlier-version").mkdir(parents=True)
    initial = claim(directory)
    (initial.path / "original").touch()
    second = claim(directory)
    assert second.path != initial.path
    assert {path for path in directory.iterdir() if path.is_dir()} == {initial.path, second.path}
    initial.release()
    again = claim(directory)
    assert again.path == initial.path and (again.path / "original").exists()
    second.release()

    monkeypatch.setattr(claim_module, "_boot", lambda: "another")
    later = claim(directory)
    assert later.path.name == "another.1"
    assert again.path.is_dir() and not second.path.exists(), "a locked folder must be kept"
    again.release()
    later.release()
    claim(directory).release()
    assert {path.name for path in directory.iterdir()} == {"another.1", "another.1.lock"}

    file = tmp_path / "file"
    file.touch()
    with pytest.raises(EnvironmentProblem, match="--home"):
        claim(file / "replicas")


def test_replica_is_deleted_when_its_table_stops_being_queryable(branch: WrittenBranch, folder: Path) -> None:
    heads = Heads(flights=branch)
    with applier(folder, heads, branch.store) as replicas:
        replicas._round(heads.heads())
        assert (folder / "main" / "delays").is_dir()
        manifest = plain_manifest(
            2,
            application="flights",
            branch="main",
            parent=branch.head,
            parallelism=2,
            max_parallelism=128,
            tables=(DELAYS.model_copy(update={"queryable": False}),),
        )
        branch.heads.append(branch.store.write_manifest(manifest))
        replicas._round(heads.heads())
        seen = replicas.application("flights")
        assert seen is not None and seen.tables == {} and [table.id for table in seen.others] == ["delays"]
        assert not (folder / "main" / "delays").exists()


def test_unreadable_index_is_rebuilt_with_all_replicas(branch: WrittenBranch, folder: Path) -> None:
    heads = Heads(flights=branch)
    with applier(folder, heads, branch.store) as replicas:
        replicas._round(heads.heads())
    (folder / INDEX / "data.mdb").write_bytes(b"\x99" * 20_000)
    with applier(folder, heads, branch.store) as replicas:
        assert not (folder / "main").exists()
        replicas._round(heads.heads())
        seen = replicas.application("flights")
        assert seen is not None and seen.at == EpochKey("main", 1)
        assert isinstance(seen.tables["delays"].replica, Replica)


@contextmanager
def limited_open_files(most: int) -> Iterator[None]:
    """Lower the soft limit of open files to ``most``; the process may raise it."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_limit_of_open_files_is_raised(tmp_path: Path) -> None:
    with limited_open_files(512):
        allow_open_files()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft == (65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536))


def test_too_many_open_files_are_reported_with_a_remedy(tmp_path: Path, branch: WrittenBranch) -> None:
    generations = Generations(tmp_path / "delays")
    lowest_free = os.dup(0)  # There are no gaps below this descriptor that other files could use.
    os.close(lowest_free)
    error_raised = pytest.raises(EnvironmentProblem, match=r"Too many open files.*LimitNOFILE")
    with error_raised, limited_open_files(lowest_free), generations.errors():
        generations.begin(1 << 20)
    assert held(catch_up(generations, branch.store, branch.head, DELAYS)) == (
        branch.head.key,
        branch.expected[branch.head.key],
    )

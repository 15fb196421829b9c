"""Generations of replicas, and those who read them beside the process that writes: real LMDB, real snapshots."""

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
from tests.service.lines import DELAYS, Line, held

KEY = RowFormat(DELAYS).encode_key(("JFK", "LAX"))


class Heads:
    """Stands for the catalog: where each application is."""

    def __init__(self, **lines: Line) -> None:
        self.lines = lines

    def heads(self) -> Sequence[ApplicationHead]:
        return [ApplicationHead(name, line.branch, line.head, ()) for name, line in self.lines.items()]


@pytest.fixture
def line(tmp_path: Path) -> Line:
    made = Line(SnapshotStore(str(tmp_path / "store")))
    made.epoch([("JFK", "LAX", 1, 0.0)])
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "replicas"
    made.mkdir()
    return made


@contextmanager
def applier(folder: Path, heads: Heads, store: SnapshotStore) -> Iterator[Replicas]:
    """Goes round only when it is told to."""
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
    """A process that reads; LMDB opens nothing twice in one."""

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


def test_a_reader_in_another_process_sees_each_epoch_when_it_was_published(
    line: Line, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_module, "LEAST_MAP_BYTES", 256 << 10)
    heads = Heads(flights=line)
    with applier(folder, heads, line.store) as replicas:
        replicas._round(heads.heads())
        with Worker(folder, line.store) as worker:
            at, found, value, first, problem, _ = worker.ask("keep")
            assert (at, found, value, problem) == ("1", "main/1", "1", "None")

            line.epoch([("JFK", "LAX", 2, 0.0)])
            replicas._round(heads.heads())
            assert worker.ask()[:4] == ["2", "main/2", "2", first]

            # More than the map holds: a larger generation, and who reads the smaller one goes on.
            line.epoch([(f"R{number}" * 20, "X" * 100, number, 0.0) for number in range(5000)])
            replicas._round(heads.heads())
            at, found, value, second, _, _ = worker.ask()
            assert (at, found, value) == ("3", "main/3", "2") and second != first
            assert worker.ask("kept")[1:4] == ["main/2", "2", first]
            assert [path.name for path in (folder / "main" / "delays").iterdir()] == [second]
            replica = replicas.application("flights").tables["delays"].replica  # type: ignore[union-attr]
            assert held(replica) == (line.head.key, line.expected[line.head.key])
            assert replica.map_bytes > 256 << 10

            # Another beginning, and another line.
            line.epoch([("JFK", "LAX", 4, 0.0)])
            for delta in line.store.read_manifest(line.heads[-1]).deltas:
                line.store.delete(delta.file.path)
            line.epoch([("JFK", "LAX", 5, 0.0)], bases=False)
            replicas._round(heads.heads())
            at, _, value, third, problem, _ = worker.ask()
            assert (at, value, third) == ("3", "2", second) and "file-missing: " in problem

            fork = Line(line.store, "fork", line.heads[:3], dict(line.expected))
            fork.epoch([("JFK", "LAX", 7, 0.0)])
            heads.lines["flights"] = fork
            replicas._round(heads.heads())
            assert worker.ask()[:3] == ["4", "fork/4", "7"]
            assert worker.ask()[4] == "None"
            heads.lines.clear()
            replicas._round(heads.heads())
            assert worker.ask()[:3] == ["None", "None", "None"]


def test_what_was_rolled_back_is_not_shown_while_the_other_line_is_built(line: Line, folder: Path) -> None:
    line.epoch([("JFK", "LAX", 2, 0.0)])
    heads = Heads(flights=line)
    with applier(folder, heads, line.store) as replicas:
        replicas._round(heads.heads())
        fork = Line(line.store, "fork", line.heads[:1], dict(line.expected))
        fork.epoch([("JFK", "LAX", 7, 0.0)])
        lacking = [fork.store.read_manifest(fork.head).deltas[0].file.path]
        kept = Path(line.store.location(lacking[0])).read_bytes()
        Path(line.store.location(lacking[0])).write_bytes(kept[:-1] + b"\0")
        heads.lines["flights"] = fork
        replicas._round(heads.heads())
        with Worker(folder, line.store) as worker:
            at, found, _, _, problem, _ = worker.ask()
            assert (at, found) == ("None", "None") and problem.startswith(FileCorrupt.slug)


def test_who_follows_goes_on_where_another_was_killed(line: Line, folder: Path) -> None:
    """Readers go on meanwhile; after a pause of the whole node nothing old is shown before the first round."""
    heads = Heads(flights=line)
    with applier(folder, heads, line.store) as replicas:
        replicas._round(heads.heads())
        generation = replicas.application("flights").tables["delays"].replica.directory  # type: ignore[union-attr]
    line.epoch([("JFK", "LAX", 2, 0.0)])
    with Worker(folder, line.store) as worker:
        assert worker.ask()[:3] == ["1", "main/1", "1"]
        with applier(folder, heads, line.store) as replicas:
            manifest = line.store.location(line.head.path)
            os.rename(manifest, manifest + ".aside")
            store_module._manifests.clear()
            replicas._round(heads.heads())
            assert worker.ask()[:3] == ["1", "main/1", "1"], "a store that cannot be read takes nothing away"
            assert worker.ask()[4].startswith(FileMissing.slug)
            os.rename(manifest + ".aside", manifest)
            replicas._round(heads.heads())
            assert worker.ask()[:4] == ["2", "main/2", "2", generation.name]
        with applier(folder, heads, line.store) as replicas:
            replicas._index.retract()
            assert worker.ask()[:2] == ["None", "None"]
            replicas._round(heads.heads())
            assert worker.ask()[:4] == ["2", "main/2", "2", generation.name]
            assert worker.ask()[5] == "True"
        (folder / INDEX).rename(folder / "aside")
        assert worker.ask()[5] == "False", "the index was replaced, and this process has to begin anew"


@pytest.mark.by_turns(3)
def test_no_reader_answers_from_an_older_epoch_than_another_one_has(
    line: Line, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one process brings, grows and rebuilds; the value of the key is the number of the epoch that wrote it."""
    monkeypatch.setattr(replica_module, "LEAST_MAP_BYTES", 128 << 10)
    monkeypatch.setattr(changes_module, "LONGEST_WALK", 3)
    heads, chance, over = Heads(flights=line), random.Random(7), threading.Event()

    def apply(replicas: Replicas) -> None:
        for _ in range(30):
            if over.is_set():
                return
            for _ in range(chance.choice([1, 1, 2, 5])):
                number = line.head.epoch + 1
                more = [(f"R{number}-{row}", "X" * 50, row, 0.0) for row in range(chance.choice([0, 100]))]
                line.epoch([("JFK", "LAX", number, 0.0), *more])
            replicas._round(heads.heads())
        over.set()

    with applier(folder, heads, line.store) as replicas:
        replicas._round(heads.heads())
        thread = threading.Thread(target=apply, args=[replicas])
        with ExitStack() as stack, Worker(folder, line.store) as one, Worker(folder, line.store) as other:
            one.ask(), other.ask()
            thread.start()
            stack.callback(thread.join)
            stack.callback(over.set)
            last, generations, answers = 1, set(), 0
            while not over.is_set():
                for worker in (one, other):
                    at, found, value, generation, problem, _ = worker.ask()
                    assert (problem, found) == ("None", f"main/{value}")
                    assert max(last, int(at)) <= int(value), "the index says no more than what the replica has"
                    last, answers = int(value), answers + 1
                    generations.add(generation)
            thread.join()
            assert one.ask()[2] == other.ask()[2] == str(line.head.epoch)
        assert answers > 20 and len(generations) > 3
        seen = replicas.application("flights")
        assert seen is not None and held(seen.tables["delays"].replica)[1] == line.expected[line.head.key]
        gc.collect()
        mapped = {part for part in Path("/proc/self/maps").read_text().split() if part.endswith("data.mdb")}
        assert {Path(part).parent.name for part in mapped if str(folder) in part} <= {INDEX, generation}


def test_readers_that_were_killed_hold_no_pages(line: Line, tmp_path: Path) -> None:
    generations = Generations(tmp_path / "delays")
    replica = catch_up(generations, line.store, line.head, DELAYS)
    script = (
        "import lmdb, os, signal, sys\n"
        "environment = lmdb.open(sys.argv[1], readonly=True, map_size=0, max_dbs=4)\n"
        "transaction = environment.begin()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.Popen([sys.executable, "-c", script, str(replica.directory)])
    killed.wait()
    assert f" {killed.pid} " in replica.environment.readers()
    line.epoch([("JFK", "LAX", 2, 0.0)])
    catch_up(generations, line.store, line.head, DELAYS)
    assert f" {killed.pid} " not in replica.environment.readers()
    generations.close()


@pytest.mark.parametrize("grows", [False, True])
def test_a_full_disk_is_said_and_look_ups_go_on(
    line: Line, tmp_path: Path, grows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if grows:
        monkeypatch.setattr(replica_module, "LEAST_MAP_BYTES", 256 << 10)
    generations = Generations(tmp_path / "delays")
    replica = catch_up(generations, line.store, line.head, DELAYS)
    line.epoch([(f"R{number}" * 20, "X" * 100, number, 0.0) for number in range(5000)])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300 << 10, before[1]))
    try:
        with pytest.raises((StorageFull, EnvironmentProblem), match=f"{generations.directory}.*Look-ups continue"):
            catch_up(generations, line.store, line.head, DELAYS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert held(generations.current) == (line.heads[0].key, line.expected[line.heads[0].key])
    assert held(catch_up(generations, line.store, line.head, DELAYS)) == (line.head.key, line.expected[line.head.key])
    assert held(replica)[0] == (line.heads[0].key if grows else line.head.key)
    generations.close()


def test_a_folder_is_one_processs_and_of_one_start_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "replicas"
    (directory / "a-branch-of-an-earlier-version").mkdir(parents=True)
    first = claim(directory)
    (first.path / "kept").touch()
    second = claim(directory)
    assert second.path != first.path
    assert {path for path in directory.iterdir() if path.is_dir()} == {first.path, second.path}
    first.release()
    again = claim(directory)
    assert again.path == first.path and (again.path / "kept").exists()
    second.release()

    monkeypatch.setattr(claim_module, "_boot", lambda: "another")
    later = claim(directory)
    assert later.path.name == "another.1"
    assert again.path.is_dir() and not second.path.exists(), "what is still locked is another machine's"
    again.release()
    later.release()
    claim(directory).release()
    assert {path.name for path in directory.iterdir()} == {"another.1", "another.1.lock"}

    file = tmp_path / "file"
    file.touch()
    with pytest.raises(EnvironmentProblem, match="--home"):
        claim(file / "replicas")


def test_a_table_that_is_not_queryable_any_more_leaves_nothing(line: Line, folder: Path) -> None:
    heads = Heads(flights=line)
    with applier(folder, heads, line.store) as replicas:
        replicas._round(heads.heads())
        assert (folder / "main" / "delays").is_dir()
        manifest = plain_manifest(
            2,
            application="flights",
            branch="main",
            parent=line.head,
            parallelism=2,
            max_parallelism=128,
            tables=(DELAYS.model_copy(update={"queryable": False}),),
        )
        line.heads.append(line.store.write_manifest(manifest))
        replicas._round(heads.heads())
        seen = replicas.application("flights")
        assert seen is not None and seen.tables == {} and [table.id for table in seen.others] == ["delays"]
        assert not (folder / "main" / "delays").exists()


def test_an_index_that_cannot_be_read_is_built_anew_with_all_replicas(line: Line, folder: Path) -> None:
    heads = Heads(flights=line)
    with applier(folder, heads, line.store) as replicas:
        replicas._round(heads.heads())
    (folder / INDEX / "data.mdb").write_bytes(b"\x99" * 20_000)
    with applier(folder, heads, line.store) as replicas:
        assert not (folder / "main").exists()
        replicas._round(heads.heads())
        seen = replicas.application("flights")
        assert seen is not None and seen.at == EpochKey("main", 1)
        assert isinstance(seen.tables["delays"].replica, Replica)


@contextmanager
def open_files(most: int) -> Iterator[None]:
    """So many may be open, and a process may raise that itself."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_replicas_may_open_as_many_files_as_their_process_may_have(tmp_path: Path) -> None:
    with open_files(512):
        allow_open_files()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft == (65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536))


def test_too_many_open_files_are_said_with_what_to_do(tmp_path: Path, line: Line) -> None:
    generations = Generations(tmp_path / "delays")
    lowest_free = os.dup(0)  # below it there are no gaps, which more files would fit into
    os.close(lowest_free)
    says = pytest.raises(EnvironmentProblem, match=r"Too many open files.*LimitNOFILE")
    with says, open_files(lowest_free), generations.errors():
        generations.begin(1 << 20)
    assert held(catch_up(generations, line.store, line.head, DELAYS)) == (line.head.key, line.expected[line.head.key])

"""The DBMS sink with several shards: processes that are killed, suspended and replaced; refused rows and tables."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from pyspark import cloudpickle

from epochal.backends.dbms import DbmsBackend
from epochal.contracts.handle import Handle
from epochal.errors import Fenced, OutcomeUnknown, RowRefused, SchemaError
from epochal.faults import ENVIRONMENT, SWITCH, Fault
from epochal.testing.contract import SinkBackendContract, SinkHarness
from epochal.testing.sink_contract import SCHEMA, epoch
from tests.kit.databases import TABLE, DbmsDatabase
from tests.kit.waiting import eventually
from tests.servers.contract.test_dbms_sink import CHANGES, NewDatabase, at, changed, content, started, write, written

pytestmark = pytest.mark.server

ROWS = [(id, f"row {id}") for id in range(40)]
STEPS = ("E5.dbms.fence-moved", "E5.dbms.applied", "E5.dbms.shard-committed")


@pytest.fixture(params=["postgresql", "mariadb"])
def server_url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def sharded(server_url: str, new_database: NewDatabase) -> DbmsDatabase:
    return new_database(server_url, keys=("id",), shards=2)


@pytest.mark.alternating(2)  # test_dbms_sink.py runs the same tests with one shard
class TestDbmsSinkWithShards(SinkBackendContract):
    @pytest.fixture
    def harness(self, postgresql_url: str, new_database: NewDatabase) -> SinkHarness:
        return new_database(postgresql_url, shards=2)


def test_each_shard_is_applied_by_a_process_and_moves_its_fence(sharded: DbmsDatabase) -> None:
    backend = started(sharded)
    for number in range(1, 6):
        rows = [(id % 29, f"{number}, {id}") for id in range(40)]
        handles = [written(backend, epoch(number), rows[first::2], subtask=first) for first in range(2)]
        backend.commit(epoch(number), handles)
        assert content(sharded) == {id % 29: name for id, (_, name) in sorted(enumerate(rows), key=lambda e: e[0] % 2)}
        assert fences(sharded) == {0: number, 1: number}
    assert len(shard_processes()) == 2
    backend.close()
    assert shard_processes() == []


def test_large_epochs_of_new_and_old_rows_do_not_wait_for_each_other(sharded: DbmsDatabase) -> None:
    """InnoDB's gap locks would let concurrent upserts of neighbouring keys deadlock."""
    backend = started(sharded)
    expected: dict[int, str] = {}
    for number in range(1, 5):
        rows = dict.fromkeys(range(number * 500, number * 500 + 4000), f"{number}")
        expected |= rows
        backend.commit(epoch(number), [written(backend, epoch(number), list(rows.items()))])
    assert content(sharded) == expected


def test_shards_and_their_number_may_change_while_an_epoch_is_pending(sharded: DbmsDatabase) -> None:
    expected: dict[int, str] = {}
    for number, shards in enumerate((1, 3, 1, 2, 4), 1):
        sharded.writing = replace(sharded.writing, shards=shards)
        first = sharded.make()
        first.check(SCHEMA)
        first.recover(at(number - 1, attempt=2 * number))
        expected |= {id: f"{number}" for id, _ in ROWS}
        handle = written(first, epoch(number, attempt=2 * number), list(expected.items()))
        sharded.end(first)
        sharded.writing = replace(sharded.writing, shards=shards % 3 + 1)
        second = sharded.make()
        second.recover(at(number, attempt=2 * number + 1))
        second.commit(epoch(number, attempt=2 * number + 1), [handle])
        assert content(sharded) == expected
        assert set(fences(sharded).values()) == {number}
        sharded.end(second)
    assert list(fences(sharded)) == [0, 1, 2, 3]


@pytest.mark.alternating(2)  # tests/unit/test_dbms_sharding.py crashes at each step, in one process
@pytest.mark.parametrize("step", STEPS)
def test_a_killed_process_is_replaced_and_its_shard_applied_once(
    sharded: DbmsDatabase, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inject(monkeypatch, Fault(step, "kill", once=str(tmp_path / "fired")))
    backend = started(sharded)
    handle = written(backend, epoch(1), ROWS)
    with pytest.raises(OutcomeUnknown, match=r"Shard [01]: Sink 'out': the process of the shard ended with exit code"):
        backend.commit(epoch(1), [handle])
    backend.commit(epoch(1), [handle])
    assert content(sharded) == dict(ROWS)
    assert fences(sharded) == {0: 1, 1: 1}
    backend.commit(epoch(2), [written(backend, epoch(2), [(1, "later"), (2, "later")])])
    assert content(sharded) == {**dict(ROWS), 1: "later", 2: "later"}


@pytest.mark.alternating(2)
@pytest.mark.parametrize("step", STEPS)
def test_a_driver_that_ends_between_two_shards_is_continued_by_the_next_attempt(
    sharded: DbmsDatabase, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One shard is held at the step; the other is committed. Then the driver is killed, and its processes end."""
    backend = started(sharded)
    handle = written(backend, epoch(1), ROWS)
    driver = Driver(backend, handle, tmp_path, Fault(step, "delay", seconds=600, once=str(tmp_path / "fired")))
    eventually(lambda: sorted(fences(sharded).values()) in ([0, 1], [1, 1]) and (tmp_path / "fired").exists())
    processes = driver.children()
    driver.kill()
    eventually(lambda: not any(psutil.pid_exists(process) for process in processes))
    successor = sharded.make()
    successor.recover(at(1, attempt=2))
    successor.commit(epoch(1, attempt=2), [handle])
    assert content(sharded) == dict(ROWS)
    assert fences(sharded) == {0: 1, 1: 1}


def test_a_suspended_process_of_a_killed_driver_is_fenced(
    postgresql_url: str, new_database: NewDatabase, tmp_path: Path
) -> None:
    """It cannot end with its driver, and its open transaction holds the lock of its fence."""
    database = new_database(postgresql_url, keys=("id",), shards=2)
    backend = started(database)
    handle = written(backend, epoch(1), ROWS)
    driver = Driver(backend, handle, tmp_path, Fault("E5.dbms.applied", "stop", once=str(tmp_path / "fired")))
    eventually(lambda: sorted(fences(database).values()) == [0, 1] and (tmp_path / "fired").exists())
    processes = driver.children()
    driver.kill()
    successor = database.make()
    successor.recover(at(1, attempt=2))
    for process in processes:
        if psutil.pid_exists(process):
            os.kill(process, signal.SIGCONT)
    eventually(lambda: not any(psutil.pid_exists(process) for process in processes))
    assert sorted(fences(database).values()) == [0, 1]
    successor.commit(epoch(1, attempt=2), [handle])
    assert content(database) == dict(ROWS)


def test_the_processes_of_a_zombie_are_refused(sharded: DbmsDatabase) -> None:
    zombie = started(sharded)
    zombie.commit(epoch(1), [written(zombie, epoch(1), ROWS)])
    late = written(zombie, epoch(2), [(id, "of the zombie") for id, _ in ROWS])
    successor = sharded.make()
    successor.recover(at(1, attempt=2))
    with pytest.raises(Fenced, match="attempt 2 has taken over"):
        zombie.commit(epoch(2), [late])
    assert content(sharded) == dict(ROWS)


def test_a_refused_row_stops_its_shard_and_is_named(server_url: str, new_database: NewDatabase) -> None:
    database = new_database(server_url, keys=("id",), operation="does", shards=2)
    backend = started(database, CHANGES)
    backend.commit(epoch(1), [changed(backend, epoch(1), [("insert", 7, "here")])])
    handle = changed(backend, epoch(2), [("insert", id, "new") for id in range(20)])
    for _ in range(2):
        with pytest.raises(RowRefused, match=r"(?s)^Shard [01]: .*refuses.*\b7\b"):
            backend.commit(epoch(2), [handle])
        assert sorted(fences(database).values()) == [1, 2]
    database.run(f"DELETE FROM {TABLE} WHERE id = 7")
    backend.commit(epoch(2), [handle])
    assert content(database) == dict.fromkeys(range(20), "new")


def test_the_password_is_not_on_a_command_line(sharded: DbmsDatabase) -> None:
    backend = started(sharded)
    backend.commit(epoch(1), [written(backend, epoch(1), ROWS)])
    lines = [" ".join(process.cmdline()) for process in shard_processes()]
    assert len(lines) == 2
    assert not any(str(sharded.url.password) in line for line in lines)


def test_uuid_keys_of_any_spelling_are_one_row(postgresql_url: str, new_database: NewDatabase) -> None:
    database = new_database(postgresql_url, keys=("id",), shards=4)
    database.run(f"CREATE TABLE {TABLE} (id uuid PRIMARY KEY, name text)")
    schema = pa.schema([("id", pa.string()), ("name", pa.string())])
    backend = started(database, schema)
    ids = [f"{number:08x}-AAAA-bbbb-cccc-00000000dDdD" for number in range(20)]
    spelled = [*ids, *(id.lower() for id in ids), *(id.upper().replace("-", "") for id in ids)]
    rows = [{"id": id, "name": f"{number}"} for number, id in enumerate(spelled)]
    for number in range(3):
        given = rows[20 * number : 20 * number + 20]
        backend.commit(epoch(number + 1), [write(backend, epoch(number + 1), given, schema)])
    assert {str(row["id"]): row["name"] for row in database.visible()} == {
        id.lower(): f"{number + 40}" for number, id in enumerate(ids)
    }


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("id bigint PRIMARY KEY, name varchar(20) UNIQUE", "it is also unique by name"),
        ("id double precision PRIMARY KEY, name text", r"different values of its keys \(id .*\) for the same row"),
    ],
)
def test_tables_that_shards_cannot_write_independently_are_refused(
    server_url: str, new_database: NewDatabase, table: str, message: str
) -> None:
    database = new_database(server_url, keys=("id",), shards=2)
    database.run(f"CREATE TABLE {TABLE} ({table})")
    schema = SCHEMA if "bigint" in table else pa.schema([("id", pa.float64()), ("name", pa.string())])
    with pytest.raises(SchemaError, match=message):
        database.make().check(schema)
    database.writing = replace(database.writing, shards=1)
    database.make().check(schema)


@pytest.mark.parametrize("exact", [False, True])
def test_text_keys_need_a_collation_that_compares_exactly(
    server_url: str, new_database: NewDatabase, exact: bool
) -> None:
    database = new_database(server_url, keys=("id",), shards=2)
    if database.address.dialect == "postgresql":
        collation = '"C"'
        if not exact:
            # The test server has no ICU, which provides such collations.
            set_flag = "UPDATE pg_collation SET collisdeterministic = false WHERE collname = 'without_case'"
            database.run('CREATE COLLATION without_case FROM "C"', set_flag)
            collation = "without_case"
    else:
        collation = "utf8mb4_bin" if exact else "utf8mb4_general_ci"
    database.run(f"CREATE TABLE {TABLE} (id varchar(20) COLLATE {collation} PRIMARY KEY, name varchar(20))")
    schema = pa.schema([("id", pa.string()), ("name", pa.string())])
    if not exact:
        with pytest.raises(SchemaError, match="Give text a collation that compares it exactly"):
            database.make().check(schema)
        return
    backend = started(database, schema)
    rows = [{"id": id, "name": id} for id in ("a", "A", "b", "B", "ä", "c", "d", "e")]
    backend.commit(epoch(1), [write(backend, epoch(1), rows, schema)])
    assert sorted(row["id"] for row in database.visible()) == sorted(row["id"] for row in rows)
    assert len(shard_processes()) == 2


def test_a_created_table_with_text_keys_can_be_written_in_shards(server_url: str, new_database: NewDatabase) -> None:
    schema = pa.schema([("id", pa.string()), ("name", pa.string())])
    database = new_database(server_url, keys=("id",), shards=2)
    backend = started(database, schema)
    rows = [{"id": f"{number}", "name": "x"} for number in range(20)]
    backend.commit(epoch(1), [write(backend, epoch(1), rows, schema)])
    assert len(database.visible()) == 20


def fences(database: DbmsDatabase) -> dict[int, int]:
    rows = database.rows("SELECT shard, epoch FROM _epochal_fence ORDER BY shard")
    return {row["shard"]: row["epoch"] for row in rows}


def shard_processes() -> list[psutil.Process]:
    found = psutil.Process().children(recursive=True)
    return [process for process in found if any("shard_processes" in part for part in command_of(process))]


def command_of(process: psutil.Process) -> list[str]:
    """Empty for a process that has ended, such as one that another test started and has not waited for."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def inject(monkeypatch: pytest.MonkeyPatch, fault: Fault) -> None:
    """Inject a fault into the processes that start from now on."""
    for name, value in planned(fault).items():
        monkeypatch.setenv(name, value)


def planned(fault: Fault) -> dict[str, str]:
    return {SWITCH: "1", ENVIRONMENT: json.dumps([fault.__dict__])}


class Driver:
    """A process that commits an epoch with its shards' processes, into which a fault is injected."""

    def __init__(self, backend: DbmsBackend, handle: Handle, folder: Path, fault: Fault) -> None:
        work = folder / "work"
        work.write_bytes(cloudpickle.dumps((backend, epoch(1), [handle])))  # type: ignore[no-untyped-call]
        environment = {**os.environ, **planned(fault), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._process = subprocess.Popen([sys.executable, "-c", COMMIT, str(work)], env=environment)

    def children(self) -> list[int]:
        return [process.pid for process in psutil.Process(self._process.pid).children(recursive=True)]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


COMMIT = """
import pickle, sys
from pathlib import Path
backend, epoch, handles = pickle.loads(Path(sys.argv[1]).read_bytes())
backend.commit(epoch, handles)
"""

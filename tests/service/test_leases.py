"""Leases by the clock of the database, on SQLite and PostgreSQL, and leadership that is based on them."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import update

from epochal.errors import CatalogUnavailable
from epochal.service.catalog import models
from epochal.service.catalog.database import Database
from epochal.service.catalog.leases import Leases
from epochal.service.catalog.types import database_now
from epochal.service.domain.leases import LEADER, Grant, Holder, Lease, LeaseSettings
from epochal.service.domain.ports import Leading
from epochal.service.domain.settings import Settings
from epochal.service.runtime.housekeeping import Housekeeping
from epochal.service.runtime.launchers.processes import LocalProcess
from epochal.service.runtime.leadership import LeaseLeadership, leadership_of
from epochal.service.runtime.machine import this_machine
from tests.kit.catalogs import database as database
from tests.kit.catalogs import new_sqlite_catalog
from tests.kit.catalogs import url as url
from tests.kit.waiting import eventually

FIRST = Holder("first", "one", "boot", "1@1")
SECOND = Holder("second", "two", "boot", "1@1")
LONG = 1000.0


def term_of(answer: Grant | Lease | None) -> int:
    assert isinstance(answer, Grant)
    return answer.term


def expire_leases(database: Database) -> None:
    with database.writing() as session:
        session.execute(update(models.Lease).values(expires_at=database_now(session)))


def test_lease_has_one_holder_until_release_and_terms_increase(database: Database) -> None:
    first, second = Leases(database, FIRST), Leases(database, SECOND)
    assert term_of(first.acquire(LEADER, LONG)) == 1
    refusal = second.acquire(LEADER, LONG)
    assert isinstance(refusal, Lease) and refusal.holder == FIRST and refusal.term == 1
    assert term_of(first.renew(LEADER, 1, LONG)) == 1

    first.release(LEADER, 1)

    assert first.renew(LEADER, 1, LONG) is None
    assert term_of(second.acquire(LEADER, LONG)) == 2
    first.release(LEADER, 1)  # has no effect on the lease of another holder
    assert isinstance(first.acquire(LEADER, LONG), Lease)


def test_expired_lease_is_not_renewed_even_if_it_is_free(database: Database) -> None:
    leases = Leases(database, FIRST)
    leases.acquire(LEADER, LONG)
    expire_leases(database)
    assert leases.renew(LEADER, 1, LONG) is None
    assert term_of(leases.acquire(LEADER, LONG)) == 2


def test_earlier_term_of_the_same_holder_is_not_renewed(database: Database) -> None:
    leases = Leases(database, FIRST)
    leases.acquire(LEADER, LONG)
    assert term_of(leases.acquire(LEADER, LONG)) == 2  # as when the first answer was lost
    assert leases.renew(LEADER, 1, LONG) is None
    assert term_of(leases.renew(LEADER, 2, LONG)) == 2


def test_clocks_of_holders_do_not_matter(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ahead(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:
            return datetime(2100, 1, 1, tzinfo=UTC)

    Leases(database, FIRST).acquire(LEADER, LONG)
    monkeypatch.setattr("epochal.service.catalog.types.datetime", Ahead)
    assert isinstance(Leases(database, SECOND).acquire(LEADER, LONG), Lease)
    with database.reading() as session:
        held = session.get_one(models.Lease, LEADER)
        assert held.expires_at - held.renewed_at == timedelta(seconds=LONG)
        assert abs(held.renewed_at - datetime.now(UTC)) < timedelta(hours=1)


def test_concurrent_requests_grant_the_lease_once(url: str, database: Database) -> None:
    """Each process has its own connections, and no row exists yet."""
    barrier = threading.Barrier(6)

    def acquire(number: int) -> Grant | Lease:
        own = Database(url)
        barrier.wait()
        answer = Leases(own, Holder(str(number), "h", "b", "1@1")).acquire(LEADER, LONG)
        own.close()
        return answer

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(acquire, range(6)))
    assert sorted(isinstance(answer, Grant) for answer in answers) == [False] * 5 + [True]


def test_lease_of_a_killed_local_process_is_taken_over_immediately(database: Database, tmp_path: Path) -> None:
    sleeping = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    here = this_machine()
    holder = Holder("killed", here.host, here.boot, str(LocalProcess.find(sleeping.pid)))
    Leases(database, holder).acquire(LEADER, LONG)
    successor = leadership_of(Settings(data=tmp_path, database=database.url))
    successor.step()
    assert successor.leading() is None

    sleeping.kill()
    sleeping.communicate()

    successor.step()
    leading = successor.leading()
    assert leading is not None and leading.term == 2
    successor.close()


@pytest.mark.server
@pytest.mark.parametrize("urgent", [True, False])
def test_process_stopped_in_a_transaction_does_not_block_the_lease(
    postgresql_catalog_url: str, urgent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL closes the connection that keeps the row locked, without notifying the client."""
    monkeypatch.setattr("epochal.service.catalog.engines.STOPPED_MILLISECONDS", 200)
    database, others = Database(postgresql_catalog_url, urgent=urgent), Database(postgresql_catalog_url)
    stopped, other = Leases(database, FIRST), Leases(others, SECOND)
    stopped.acquire(LEADER, LONG)
    expire_leases(others)

    def hold_it_locked() -> None:
        with database.writing() as session:
            session.get(models.Lease, LEADER, with_for_update=True)
            assert term_of(other.acquire(LEADER, LONG)) == 2
            session.get(models.Lease, LEADER, populate_existing=True)

    with pytest.raises(CatalogUnavailable):
        hold_it_locked()
    assert stopped.renew(LEADER, 1, LONG) is None
    database.close()
    others.close()


@dataclass
class ManualClock:
    """A clock that the test advances, and a catalog that it makes unavailable."""

    database: Database
    seconds: float = 100.0
    unavailable: bool = False
    answer_delay: float = 0.0

    def __call__(self) -> float:
        return self.seconds

    def leadership(self, holder: Holder) -> LeaseLeadership:
        return LeaseLeadership(_Leases(self, holder), LeaseSettings(lease_seconds=LONG, margin_seconds=1), self)


class _Leases(Leases):
    def __init__(self, manual_clock: ManualClock, holder: Holder) -> None:
        super().__init__(manual_clock.database, holder)
        self._clock = manual_clock

    def _lost(self) -> None:
        if self._clock.unavailable:
            raise CatalogUnavailable("unavailable")

    def acquire(self, name: str, seconds: float) -> Grant | Lease:
        self._lost()
        return super().acquire(name, seconds)

    def renew(self, name: str, term: int, seconds: float) -> Grant | None:
        self._lost()
        grant = super().renew(name, term, seconds)
        self._clock.seconds += self._clock.answer_delay
        return grant


@pytest.fixture
def manual_clock(database: Database) -> ManualClock:
    return ManualClock(database)


def test_leader_stops_before_its_lease_expires_counted_from_the_request(manual_clock: ManualClock) -> None:
    leader = manual_clock.leadership(FIRST)
    leader.step()
    manual_clock.answer_delay = 10
    leader.step()  # requested at 100, answered at 110
    assert leader.leading() is not None
    manual_clock.seconds = 100 + LONG - 1.001
    assert leader.leading() is not None
    manual_clock.seconds = 100 + LONG - 1
    assert leader.leading() is None
    other = manual_clock.leadership(SECOND)
    other.step()
    assert other.leading() is None  # not expired by the clock of the database


def test_leader_continues_after_an_outage_with_a_later_start(manual_clock: ManualClock) -> None:
    leader = manual_clock.leadership(FIRST)
    leader.step()
    before = leader.leading()
    leader.step()
    assert leader.leading() == before
    manual_clock.unavailable = True
    leader.step()
    assert leader.leading() is None
    manual_clock.unavailable = False
    leader.step()
    after = leader.leading()
    assert before is not None and after is not None
    assert after.term == before.term and after.since > before.since


def test_leader_suspended_past_its_lease_begins_a_new_term_or_stands_by(
    manual_clock: ManualClock, database: Database
) -> None:
    leader, other = manual_clock.leadership(FIRST), manual_clock.leadership(SECOND)
    leader.step()
    expire_leases(database)
    other.step()
    assert other.leading() is not None

    leader.step()

    assert leader.leading() is None
    expire_leases(database)
    leader.step()
    again = leader.leading()
    assert again is not None and again.term == 3
    other.step()
    assert other.leading() is None


def test_closing_leader_releases_the_lease_immediately(url: str, database: Database, tmp_path: Path) -> None:
    """Each control plane has its own data folder."""
    first, second = (leadership_of(Settings(data=tmp_path / name, database=url)) for name in ("one", "two"))
    first.open()
    second.step()
    assert first.leading() is not None and second.leading() is None
    first.close()
    second.step()
    assert first.leading() is None and second.leading() is not None
    second.close()


class ScriptedLeadership:
    """A leadership whose term the test sets."""

    def __init__(self) -> None:
        self.term: int | None = None

    def open(self) -> None: ...

    def close(self) -> None: ...

    def leading(self) -> Leading | None:
        return None if self.term is None else Leading(self.term, datetime(2026, 1, 1, tzinfo=UTC))


def housekeeping(leadership: ScriptedLeadership, *tasks: Callable[[], bool]) -> Housekeeping:
    made = Housekeeping(leadership)
    for number, task in enumerate(tasks):
        made.register(f"task {number}", LONG, task)
    return made


def test_leader_runs_housekeeping_at_its_start_and_then_at_intervals() -> None:
    leadership, done = ScriptedLeadership(), []
    house = housekeeping(leadership, lambda: bool(done.append("expiry")))
    house.look()
    assert done == []
    leadership.term = 1
    house.look()
    house.look()
    assert done == ["expiry"]
    leadership.term = 2
    house.look()
    assert done == ["expiry"] * 2


def test_housekeeping_repeats_until_done_or_the_lease_ends() -> None:
    leadership, done = ScriptedLeadership(), []
    leadership.term = 1

    def task() -> bool:
        done.append(len(done))
        if len(done) == 5:
            leadership.term = None
        return len(done) < 100

    after: list[str] = []
    housekeeping(leadership, task, lambda: bool(after.append("not any more"))).look()
    assert len(done) == 5 and after == []


def test_failing_housekeeping_task_does_not_block_the_others() -> None:
    leadership, done = ScriptedLeadership(), []
    leadership.term = 1

    def failing() -> bool:
        raise RuntimeError("a task")

    house = housekeeping(leadership, failing, lambda: bool(done.append("the next")))
    house.open()
    eventually(lambda: bool(done))
    house.close()


def test_data_folder_with_sqlite_has_one_control_plane(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path)
    new_sqlite_catalog(tmp_path / "catalog.sqlite")
    first, second = leadership_of(settings), leadership_of(settings)
    first.open()
    second.step()
    assert second.leading() is None
    first.close()
    second.step()
    assert second.leading() is not None
    second.close()

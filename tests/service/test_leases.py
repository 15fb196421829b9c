"""Leases by the database's clock, on SQLite and PostgreSQL, and who leads by them."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
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
from tests.kit.catalogs import new_sqlite_catalog
from tests.kit.waiting import eventually

FIRST = Holder("first", "one", "boot", "1@1")
SECOND = Holder("second", "two", "boot", "1@1")
LONG = 1000.0


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.server)])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        return new_sqlite_catalog(request.getfixturevalue("tmp_path") / "catalog.sqlite")
    return str(request.getfixturevalue("postgresql_catalog_url"))


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    database = Database(url)
    yield database
    database.close()


def term_of(answer: Grant | Lease | None) -> int:
    assert isinstance(answer, Grant)
    return answer.term


def let_expire(database: Database) -> None:
    with database.writing() as session:
        session.execute(update(models.Lease).values(expires_at=database_now(session)))


def test_one_holds_it_until_it_is_released_and_terms_rise(database: Database) -> None:
    first, second = Leases(database, FIRST), Leases(database, SECOND)
    assert term_of(first.acquire(LEADER, LONG)) == 1
    refusal = second.acquire(LEADER, LONG)
    assert isinstance(refusal, Lease) and refusal.holder == FIRST and refusal.term == 1
    assert term_of(first.renew(LEADER, 1, LONG)) == 1

    first.release(LEADER, 1)

    assert first.renew(LEADER, 1, LONG) is None
    assert term_of(second.acquire(LEADER, LONG)) == 2
    first.release(LEADER, 1)  # what is another's stays
    assert isinstance(first.acquire(LEADER, LONG), Lease)


def test_what_has_expired_by_the_databases_clock_is_not_renewed_even_if_nobody_took_it(database: Database) -> None:
    leases = Leases(database, FIRST)
    leases.acquire(LEADER, LONG)
    let_expire(database)
    assert leases.renew(LEADER, 1, LONG) is None
    assert term_of(leases.acquire(LEADER, LONG)) == 2


def test_an_earlier_term_of_the_same_holder_is_not_renewed(database: Database) -> None:
    leases = Leases(database, FIRST)
    leases.acquire(LEADER, LONG)
    assert term_of(leases.acquire(LEADER, LONG)) == 2  # the first answer was lost
    assert leases.renew(LEADER, 1, LONG) is None
    assert term_of(leases.renew(LEADER, 2, LONG)) == 2


def test_nobodys_own_clock_counts(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_of_many_that_ask_at_once_one_gets_it(url: str, database: Database) -> None:
    """Each over connections of its own, with no row there yet."""
    answers: list[Grant | Lease] = []
    barrier = threading.Barrier(6)

    def ask(number: int) -> None:
        own = Database(url)
        barrier.wait()
        answers.append(Leases(own, Holder(str(number), "h", "b", "1@1")).acquire(LEADER, LONG))
        own.close()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(isinstance(answer, Grant) for answer in answers) == [False] * 5 + [True]


def test_the_lease_of_a_process_of_this_machine_that_was_killed_is_not_waited_for(
    database: Database, tmp_path: Path
) -> None:
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
def test_a_process_that_is_stopped_within_a_transaction_keeps_nobody_from_the_lease(
    postgresql_catalog_url: str, urgent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL ends the connection that keeps the row locked and says nothing."""
    monkeypatch.setattr("epochal.service.catalog.engines.STOPPED_MILLISECONDS", 200)
    database, others = Database(postgresql_catalog_url, urgent=urgent), Database(postgresql_catalog_url)
    stopped, other = Leases(database, FIRST), Leases(others, SECOND)
    stopped.acquire(LEADER, LONG)
    let_expire(others)

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
class Hands:
    """A clock that a test moves, and a catalog that it takes away."""

    database: Database
    seconds: float = 100.0
    away: bool = False
    late: float = 0.0

    def __call__(self) -> float:
        return self.seconds

    def leadership(self, holder: Holder) -> LeaseLeadership:
        return LeaseLeadership(_Leases(self, holder), LeaseSettings(lease_seconds=LONG, margin_seconds=1), self)


class _Leases(Leases):
    def __init__(self, hands: Hands, holder: Holder) -> None:
        super().__init__(hands.database, holder)
        self._hands = hands

    def _lost(self) -> None:
        if self._hands.away:
            raise CatalogUnavailable("away")

    def acquire(self, name: str, seconds: float) -> Grant | Lease:
        self._lost()
        return super().acquire(name, seconds)

    def renew(self, name: str, term: int, seconds: float) -> Grant | None:
        self._lost()
        grant = super().renew(name, term, seconds)
        self._hands.seconds += self._hands.late
        return grant


@pytest.fixture
def hands(database: Database) -> Hands:
    return Hands(database)


def test_a_leader_stops_before_its_lease_is_over_counted_from_before_it_asked(hands: Hands) -> None:
    leader = hands.leadership(FIRST)
    leader.step()
    hands.late = 10
    leader.step()  # is asked at 100, answered at 110
    assert leader.leading() is not None
    hands.seconds = 100 + LONG - 1.001
    assert leader.leading() is not None
    hands.seconds = 100 + LONG - 1
    assert leader.leading() is None
    other = hands.leadership(SECOND)
    other.step()
    assert other.leading() is None  # by the database's clock it is not over yet


def test_after_an_outage_of_the_catalog_it_leads_on_since_the_first_write(hands: Hands) -> None:
    leader = hands.leadership(FIRST)
    leader.step()
    before = leader.leading()
    leader.step()
    assert leader.leading() == before
    hands.away = True
    leader.step()
    assert leader.leading() is None
    hands.away = False
    leader.step()
    after = leader.leading()
    assert before is not None and after is not None
    assert after.term == before.term and after.since > before.since


def test_one_that_was_stopped_for_too_long_begins_a_new_term_or_stands_by(hands: Hands, database: Database) -> None:
    leader, other = hands.leadership(FIRST), hands.leadership(SECOND)
    leader.step()
    let_expire(database)
    other.step()
    assert other.leading() is not None

    leader.step()

    assert leader.leading() is None
    let_expire(database)
    leader.step()
    again = leader.leading()
    assert again is not None and again.term == 3
    other.step()
    assert other.leading() is None


def test_who_closes_lets_another_one_lead_at_once(url: str, database: Database, tmp_path: Path) -> None:
    """Each with a data folder of its own."""
    first, second = (leadership_of(Settings(data=tmp_path / name, database=url)) for name in ("one", "two"))
    first.open()
    second.step()
    assert first.leading() is not None and second.leading() is None
    first.close()
    second.step()
    assert first.leading() is None and second.leading() is not None
    second.close()


class Says:
    """A leadership that does as it is asked."""

    def __init__(self) -> None:
        self.term: int | None = None

    def open(self) -> None: ...

    def close(self) -> None: ...

    def leading(self) -> Leading | None:
        return None if self.term is None else Leading(self.term, datetime(2026, 1, 1, tzinfo=UTC))


def housekeeping(says: Says, *tasks: Callable[[], bool]) -> Housekeeping:
    made = Housekeeping(says)
    for number, task in enumerate(tasks):
        made.register(f"task {number}", LONG, task)
    return made


def test_housekeeping_is_done_by_the_leader_when_it_begins_and_then_at_intervals() -> None:
    says, done = Says(), []
    house = housekeeping(says, lambda: bool(done.append("expiry")))
    house.look()
    assert done == []
    says.term = 1
    house.look()
    house.look()
    assert done == ["expiry"]
    says.term = 2
    house.look()
    assert done == ["expiry"] * 2


def test_housekeeping_goes_on_while_there_is_more_and_ends_with_the_lease() -> None:
    says, done = Says(), []
    says.term = 1

    def task() -> bool:
        done.append(len(done))
        if len(done) == 5:
            says.term = None
        return len(done) < 100

    after: list[str] = []
    housekeeping(says, task, lambda: bool(after.append("not any more"))).look()
    assert len(done) == 5 and after == []


def test_a_task_that_fails_keeps_no_other_from_being_done() -> None:
    says, done = Says(), []
    says.term = 1

    def failing() -> bool:
        raise RuntimeError("a task")

    house = housekeeping(says, failing, lambda: bool(done.append("the next")))
    house.open()
    eventually(lambda: bool(done))
    house.close()


def test_on_sqlite_a_data_folder_is_for_one_control_plane(tmp_path: Path) -> None:
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

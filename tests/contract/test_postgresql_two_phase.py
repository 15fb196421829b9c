"""PostgreSQL's two-phase commit keeps the contract of sinks; and what only it promises."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from epochal.backends.postgresql_two_phase import PostgresqlTwoPhaseBackend
from epochal.contracts.backend import SinkPlace
from epochal.testing.contract import SinkBackendContract, SinkHarness
from tests.databases import TestDatabase

pytestmark = pytest.mark.server


class TwoPhaseDatabase(TestDatabase, SinkHarness):
    def make(self) -> PostgresqlTwoPhaseBackend:
        return self.kept(PostgresqlTwoPhaseBackend(SinkPlace("out", self.store), self.address, self.writing))

    def leftovers(self) -> list[str]:
        return [
            row["gid"] for row in self.rows("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
        ]


@pytest.fixture
def database(postgresql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoPhaseDatabase]:
    database = TwoPhaseDatabase(postgresql_url, tmp_path, monkeypatch)
    yield database
    database.close()


class TestPostgresqlTwoPhase(SinkBackendContract):
    @pytest.fixture
    def harness(self, database: TwoPhaseDatabase) -> SinkHarness:
        return database

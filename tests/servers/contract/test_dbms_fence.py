"""The fence of the DBMS sink: zombies, lost state, and second runs with empty state are detected on every database."""

from __future__ import annotations

import re
from typing import Any

import pytest
import sqlalchemy as sa

from epochal.contracts.identity import EpochKey, EpochScope
from epochal.errors import Fenced, SinkError
from epochal.testing.sink_contract import APPLICATION, BRANCH, SCHEMA, epoch, pre_commit, rows, same
from tests.kit.databases import TABLE, DbmsDatabase, manifest
from tests.servers.contract.test_dbms_sink import NewDatabase, at, started


class TestFence:
    def test_every_write_of_a_zombie_is_refused(self, url: str, new_database: NewDatabase) -> None:
        database = new_database(url)
        zombie, handle = started(database), None
        handle = pre_commit(zombie, epoch(1), rows(1))
        successor = database.make()
        successor.recover(at(0, attempt=2))
        with pytest.raises(Fenced, match="attempt 2 has taken over"):
            zombie.commit(epoch(1), [handle])
        with pytest.raises(Fenced):
            zombie.recover(at(0, attempt=1))
        assert database.visible() == []

    def test_fence_ahead_of_the_application_is_reported_as_lost_state(
        self, url: str, new_database: NewDatabase
    ) -> None:
        backend = started(new_database(url))
        for number in (1, 2):
            backend.commit(epoch(number), [pre_commit(backend, epoch(number), rows(number))])
        with pytest.raises(SinkError, match="already holds epoch 2, but the application's state is at epoch 1"):
            backend.recover(at(1, attempt=2))

    def test_fence_set_back_by_hand_is_detected(self, url: str, new_database: NewDatabase) -> None:
        database = new_database(url)
        backend = started(database)
        backend.commit(epoch(1), [pre_commit(backend, epoch(1), rows(1))])
        database.run("UPDATE _epochal_fence SET epoch = 0")
        with pytest.raises(SinkError, match="is at epoch 0, attempt 1; epoch 2 of attempt 1 follows epoch 1"):
            backend.commit(epoch(2), [pre_commit(backend, epoch(2), rows(2))])
        assert same(database.visible(), rows(1))

    def test_deleted_fence_is_detected_and_a_new_sink_is_accepted(self, url: str, new_database: NewDatabase) -> None:
        database = new_database(url)
        database.store.write_manifest(manifest(4))
        newcomer = database.make()
        newcomer.check(SCHEMA)
        newcomer.recover(at(4, attempt=3))
        handle = pre_commit(newcomer, epoch(5, attempt=3), rows(5))
        newcomer.commit(epoch(5, attempt=3), [handle])
        assert same(database.visible(), rows(5))

        database.store.write_manifest(manifest(5, newcomer.target))
        database.run("DELETE FROM _epochal_fence")
        with pytest.raises(SinkError, match="has lost the row of branch main"):
            newcomer.commit(epoch(6, attempt=3), [])
        with pytest.raises(SinkError, match="has lost the row of branch main"):
            newcomer.recover(at(5, attempt=4))

    def test_sink_removed_for_some_epochs_continues(self, url: str, new_database: NewDatabase) -> None:
        database = new_database(url)
        backend = started(database)
        backend.commit(epoch(1), [pre_commit(backend, epoch(1), rows(1))])
        database.store.write_manifest(manifest(8))
        backend.recover(at(8, attempt=2))
        backend.commit(epoch(9, attempt=2), [pre_commit(backend, epoch(9, attempt=2), rows(9))])
        assert same(database.visible(), rows(1, 9))

    def test_new_branch_has_its_own_fence(self, url: str, new_database: NewDatabase) -> None:
        database = new_database(url)
        backend = started(database)
        backend.commit(epoch(1), [pre_commit(backend, epoch(1), rows(1))])
        fork = EpochScope(APPLICATION, EpochKey("fork", 2), 1, EpochKey(BRANCH, 1))
        backend.recover(EpochScope(APPLICATION, EpochKey("fork", 0), 1, None))
        backend.commit(fork, [pre_commit(backend, fork, rows(2))])
        assert {(row["branch"], row["epoch"]) for row in database.rows("SELECT * FROM _epochal_fence")} == {
            (BRANCH, 1),
            ("fork", 2),
        }


class TestSecondRunWithEmptyState:
    def test_second_append_is_refused(self, url: str, new_database: NewDatabase) -> None:
        database = new_database(url)
        first, second = (f"{APPLICATION}-0000000{number}" for number in (1, 2))
        self.run(database, first)
        with pytest.raises(SinkError, match=f"append to table {TABLE} a second time: an earlier run .*{first}.*") as no:
            self.run(database, second)
        assert "--directory DIR" in no.value.message
        assert same(database.visible(), rows(1, 2))
        forget = re.search(r"DELETE FROM _epochal_fence WHERE .*?\)", no.value.message)
        assert forget is not None
        database.run(forget[0])
        self.run(database, second)
        assert same(database.visible(), rows(1, 2, 1, 2))

    def test_emptied_table_can_be_filled_again(self, url: str, new_database: NewDatabase) -> None:
        database = new_database(url)
        self.run(database, f"{APPLICATION}-00000001")
        database.run(f"DELETE FROM {TABLE}")
        self.run(database, f"{APPLICATION}-00000002")
        assert same(database.visible(), rows(1, 2))

    @pytest.mark.parametrize("writing", [{}, {"keys": ("id",)}], ids=["continued", "with keys"])
    def test_second_run_is_accepted_on_a_continued_branch_and_with_keys(
        self, url: str, new_database: NewDatabase, writing: Any
    ) -> None:
        """A branch that continues another one, a sink with keys, and another application."""
        database = new_database(url, **writing)
        parent = EpochKey(f"{APPLICATION}-00000001", 1)
        self.run(database, parent.branch)
        self.run(database, f"{APPLICATION}-00000002", None if writing else parent)
        self.run(database, "another-00000003", application="another")
        assert same(database.visible(), rows(1, 2) if writing else rows(1, 2, 1, 2, 1, 2))

    def test_rows_of_another_application_are_logged_as_a_warning(
        self, url: str, new_database: NewDatabase, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The application may have been restarted under another name, or share its table with another application."""
        database = new_database(url)
        self.run(database, "another-00000003", application="another")
        assert caplog.messages == []
        self.run(database, f"{APPLICATION}-00000001")
        (warning,) = [text for text in caplog.messages if "appends to table" in text]
        assert f"Sink 'out' of '{APPLICATION}'" in warning and f"table {TABLE}," in warning
        assert "(branch another-00000003, sink 'out', to epoch 1)" in warning and "_epochal_fence" in warning
        caplog.clear()
        database.run(f"DELETE FROM {TABLE}")
        self.run(database, "third-00000004", application="third")
        assert caplog.messages == []

    def run(
        self, database: DbmsDatabase, branch: str, parent: EpochKey | None = None, application: str = APPLICATION
    ) -> None:
        backend = database.make()
        backend.check(SCHEMA)
        backend.recover(EpochScope(application, EpochKey(branch, 0), 1, parent))
        scope = EpochScope(application, EpochKey(branch, 1), 1, parent)
        backend.commit(scope, [pre_commit(backend, scope, rows(1, 2))])


@pytest.mark.server
def test_open_transaction_of_a_stopped_driver_is_terminated(postgresql_url: str, new_database: NewDatabase) -> None:
    """It holds the lock of the fence's row, for which its successor would wait forever."""
    database = new_database(postgresql_url)
    started(database)
    with database.engine.connect() as stopped:
        stopped.exec_driver_sql("UPDATE _epochal_fence SET epoch = 1")
        successor = database.make()
        successor.recover(at(0, attempt=2))
        with pytest.raises(sa.exc.OperationalError, match="terminating connection"):
            stopped.exec_driver_sql("SELECT 1")
    assert database.rows("SELECT epoch, attempt FROM _epochal_fence") == [{"epoch": 0, "attempt": 2}]

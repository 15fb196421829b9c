"""Workers of operations: one control plane continues what another did not finish, and cancelled work is cleaned up."""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from epochal.errors import CatalogUnavailable, Conflict, EnvironmentProblem
from epochal.service.catalog.database import Database
from epochal.service.catalog.operation_claims import Claim
from epochal.service.catalog.operations import OperationRepository
from epochal.service.catalog.types import now
from epochal.service.domain.operations import Interrupted
from epochal.service.runtime import operations
from epochal.service.runtime.operations import OperationWorker
from tests.kit.catalogs import database as database
from tests.kit.catalogs import url as url
from tests.kit.waiting import eventually
from tests.service.operation_workers import (
    Checked,
    EndlessRun,
    Named,
    Request,
    begin,
    claims,
    control_plane,
    expire_claim,
    operation,
    queued_operation,
    verified,
    worker_of,
)


def test_exclusive_operations_run_one_at_a_time_over_all_control_planes(database: Database) -> None:
    """An import keeps files that it finds in the store; a concurrent import could delete them."""
    holder_a, holder_b = claims(database, "holder_a"), claims(database, "holder_b")
    first = holder_a.begin("import", "alice", lambda session: (None, Named(name="first")), "default").id
    second = holder_a.begin("import", "alice", lambda session: (None, Named(name="second")), "default").id
    held = holder_a.claim(["export", "import"])
    assert held is not None and held.id == first
    assert holder_b.claim(["export", "import"]) is None
    expire_claim(database, first)
    taken = holder_b.claim(["import"])
    assert taken is not None and taken.id == first
    taken.fail(Conflict("no"))
    following = holder_a.claim(["import"])
    assert following is not None and following.id == second


def test_unclaimed_operation_is_carried_out(database: Database) -> None:
    id = queued_operation(database)
    worker_of(database, verified).work_off("store")
    ended = operation(database, id)
    assert (ended.state, ended.result, ended.created_by) == ("succeeded", {"checked": "flights"}, "alice")
    assert (ended.claim_holder, ended.claim_until) == (None, None)


def test_claim_is_taken_over_after_expiry_or_death_of_its_process(database: Database) -> None:
    id = queued_operation(database)
    killed = OperationWorker(database)._claims._holder.replace("@", "@0")  # an earlier process with the same process id
    for holder in ("elsewhere/boot/1@1/x", killed):
        assert claims(database, holder).claim(["verify"]) is not None
        if holder != killed:
            worker_of(database, verified).work_off("store")
            assert operation(database, id).state == "running"
            expire_claim(database, id)
    worker_of(database, verified).work_off("store")
    assert operation(database, id).state == "succeeded"


def test_second_operation_on_the_store_is_refused(database: Database) -> None:
    running = queued_operation(database)
    for kind in ("verify", "collect"):
        with pytest.raises(Conflict, match=f"verify {running}"):
            claims(database, "me").begin(kind, "another", lambda session: (None, Request()), "default")  # type: ignore[arg-type]


def test_control_plane_releases_its_claims_at_shutdown(database: Database) -> None:
    endless = EndlessRun()
    with control_plane(database, endless) as worker:
        id = begin(worker)
        assert endless.begun.wait(20)
    left = operation(database, id)
    assert (left.state, left.claim_holder) == ("running", None)
    with control_plane(database, verified):
        eventually(lambda: operation(database, id).state == "succeeded")


def test_operation_is_found_without_a_hint(database: Database) -> None:
    """Hints of other control planes can be lost."""
    with control_plane(database, verified) as worker:
        eventually(
            lambda: not worker._lanes["store"].service._event.is_set()
        )  # the worker has looked for work, and waits
        id = queued_operation(database)
        eventually(lambda: operation(database, id).state == "succeeded", seconds=operations.TIDY_SECONDS / 2)


def test_process_whose_claim_was_taken_over_stops_its_work(database: Database) -> None:
    id = queued_operation(database)
    slow = claims(database, "slow").claim(["verify"])
    expire_claim(database, id)
    successor = claims(database, "successor").claim(["verify"])
    assert slow is not None and successor is not None and successor.id == id
    for late in (slow.renew, lambda: slow.succeed(Checked(checked="no")), slow.release, slow.check):
        with pytest.raises(Interrupted):
            late()
    successor.succeed(Checked(checked="flights"))
    assert operation(database, id).result == {"checked": "flights"}
    assert claims(database, "slow").claim(["verify"]) is None


def test_work_stops_before_an_unrenewed_claim_expires(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    id = queued_operation(database)
    claim = claims(database, "cut off").claim(["verify"])
    assert claim is not None
    claim.check()
    monkeypatch.setattr("epochal.service.catalog.operation_claims.time.monotonic", lambda: claim._held_until)
    with pytest.raises(Interrupted, match="could not be renewed"):
        claim.check()
    until = operation(database, id).claim_until
    assert until is not None and until > now()


def test_cancelled_operation_removes_its_files_and_names_the_user(database: Database) -> None:
    endless, swept = EndlessRun(), list[str]()
    worker = worker_of(database, endless, lambda claim, request: swept.append(claim.id))
    worker.open()
    try:
        id = begin(worker)
        assert endless.begun.wait(20)
        cancelled = worker.cancel(id, "me")
        assert cancelled.cancel_requested_at is not None and cancelled.state in ("running", "cancelled")
        eventually(lambda: operation(database, id).state == "cancelled")
        assert worker.cancel(id, "me").state == "cancelled"
    finally:
        worker.close()
    error = operation(database, id).error
    assert swept == [id] and error is not None
    assert (error["type"], error["detail"]) == (
        "urn:epochal:problem:operation-cancelled",
        "The verify was cancelled by me.",
    )


def test_cancelled_operation_of_a_killed_process_is_swept_by_the_next(database: Database) -> None:
    id = queued_operation(database)
    claims(database, "killed").claim(["verify"])
    claims(database, "another").cancel(id, "me")
    expire_claim(database, id)
    swept: list[str] = []

    def never(claim: Claim, request: Request) -> Checked:
        raise AssertionError("the operation is cancelled")

    worker_of(database, never, lambda claim, request: swept.append(claim.id)).work_off("store")
    assert operation(database, id).state == "cancelled" and swept == [id]


def test_operation_that_ends_while_it_is_cancelled_is_cancelled(database: Database) -> None:
    id = queued_operation(database)
    swept: list[str] = []

    def cancelled_meanwhile(claim: Claim, request: Request) -> Checked:
        claims(database, "another").cancel(id, "me")
        return Checked(checked="all")

    worker_of(database, cancelled_meanwhile, lambda claim, request: swept.append(claim.id)).work_off("store")
    ended = operation(database, id)
    assert (ended.state, ended.result, swept) == ("cancelled", None, [id])


def test_failed_sweep_is_repeated_or_fails_the_operation(database: Database) -> None:
    id = queued_operation(database)
    claims(database, "another").cancel(id, "me")
    troubles: list[Exception] = [CatalogUnavailable("not now"), EnvironmentProblem("the store is read-only")]

    def sweep(claim: Claim, request: Request) -> None:
        raise troubles.pop(0)

    worker = worker_of(database, verified, sweep)
    with pytest.raises(CatalogUnavailable):
        worker.work_off("store")
    assert operation(database, id).state == "running"
    worker.work_off("store")
    error = operation(database, id).error
    assert operation(database, id).state == "failed" and error is not None and "read-only" in error["detail"]


def test_expected_errors_are_reported_and_unexpected_ones_are_hidden(database: Database) -> None:
    troubles = [
        EnvironmentProblem("the disk is full"),
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/full/folder"),
        ZeroDivisionError("secret"),
    ]

    def failing(claim: Claim, request: Request) -> Checked:
        raise troubles.pop(0)

    worker = worker_of(database, failing)
    for expected in (
        "the disk is full",
        "There is no space left for /full/folder. The verify was tried. Make room there",
        "The verify failed; the control plane's log contains the reason",
    ):
        id = queued_operation(database)
        worker.work_off("store")
        error = operation(database, id).error
        assert error is not None and error["detail"].startswith(expected)


def test_progress_is_stored_while_the_operation_runs(database: Database) -> None:
    seen: list[str | None] = []

    def saying(claim: Claim, request: Request) -> Checked:
        claim.progress("one of two")
        seen.append(operation(database, claim.id).progress)
        return Checked(checked="")

    id = queued_operation(database)
    worker_of(database, saying).work_off("store")
    assert seen == ["one of two"] and operation(database, id).progress is None


def test_running_operations_of_a_kind_are_found_oldest_first(database: Database) -> None:
    id = queued_operation(database)
    with database.reading() as session:
        assert [row.id for row in OperationRepository(session).running("verify")] == [id]


def test_cancel_by_another_control_plane_takes_effect_at_renewal(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "RENEW_SECONDS", 0.05)
    endless, swept = EndlessRun(), list[str]()
    worker = worker_of(database, endless, lambda claim, request: swept.append(claim.id))
    worker.open()
    try:
        id = begin(worker)
        assert endless.begun.wait(20)
        assert worker_of(database, endless).cancel(id, "me").state == "running"  # by another control plane
        eventually(lambda: operation(database, id).state == "cancelled")
    finally:
        worker.close()
    assert swept == [id]


def test_each_operation_is_carried_out_by_one_control_plane(database: Database) -> None:
    with database.writing() as session:
        added = [OperationRepository(session).add("verify", None, None, {}, "me").id for _ in range(12)]
    start = threading.Barrier(3)

    def work_off(holder: str) -> list[str]:
        own, carried_out = claims(database, holder), list[str]()
        start.wait()
        while (claim := own.claim(["verify"])) is not None:
            carried_out.append(claim.id)
            claim.succeed(Checked(checked=holder))
        return carried_out

    with ThreadPoolExecutor(3) as pool:
        done = [id for ids in pool.map(work_off, ["one", "two", "three"]) for id in ids]
    assert sorted(done) == sorted(added)
    assert {operation(database, id).state for id in added} == {"succeeded"}


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_operation_locked_by_another_claim_is_skipped(database: Database) -> None:
    with database.writing() as session:
        oldest, next = (OperationRepository(session).add("verify", None, None, {}, "me").id for _ in range(2))
    with database.writing() as session:
        OperationRepository(session).locked(oldest)
        claim = claims(database, "me").claim(["verify"])
        assert claim is not None and claim.id == next
        assert claims(database, "another").claim(["verify"]) is None
    claim = claims(database, "another").claim(["verify"])
    assert claim is not None and claim.id == oldest


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_concurrent_operations_on_the_store_are_refused(database: Database) -> None:
    both = threading.Barrier(2)

    def begin(kind: str) -> str | None:
        def make_request(session: Any) -> tuple[None, Request]:
            both.wait(20)  # both are inside their transactions
            return None, Request()

        try:
            return claims(database, kind).begin(kind, "me", make_request, "default").id  # type: ignore[arg-type]
        except Conflict:
            return None

    with ThreadPoolExecutor(2) as pool:
        begun = list(pool.map(begin, ["collect", "verify"]))
    assert sum(id is not None for id in begun) == 1

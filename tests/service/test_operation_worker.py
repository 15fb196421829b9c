"""The one worker: what a control plane did not end the next one begins again, and what is cancelled is swept."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
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
from tests.kit.waiting import eventually
from tests.service.operation_workers import (
    CATALOGS,
    Checked,
    Named,
    Request,
    Unending,
    answered,
    asked_for,
    begin,
    claim_is_over,
    claims,
    control_plane,
    opened,
    operation,
    worker_of,
)


@pytest.fixture(params=CATALOGS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    yield from opened(request, tmp_path)


def test_of_what_must_be_alone_all_control_planes_carry_out_one(database: Database) -> None:
    """An import leaves alone what it finds in the store: another one must not be about to take that back."""
    here, there = claims(database, "here"), claims(database, "there")
    first = here.begin("import", "somebody", lambda session: (None, Named(name="first")), "default").id
    second = here.begin("import", "somebody", lambda session: (None, Named(name="second")), "default").id
    held = here.claim(["export", "import"])
    assert held is not None and held.id == first
    assert there.claim(["export", "import"]) is None
    claim_is_over(database, first)
    taken = there.claim(["import"])
    assert taken is not None and taken.id == first
    taken.fail(Conflict("no"))
    following = here.claim(["import"])
    assert following is not None and following.id == second


def test_what_nobody_claims_is_carried_out(database: Database) -> None:
    id = asked_for(database)
    worker_of(database, answered).work_off("store")
    ended = operation(database, id)
    assert (ended.state, ended.result, ended.created_by) == ("succeeded", {"checked": "flights"}, "somebody")
    assert (ended.claim_holder, ended.claim_until) == (None, None)


def test_a_claim_is_taken_over_when_it_is_over_or_its_process_is_gone(database: Database) -> None:
    id = asked_for(database)
    killed = OperationWorker(database)._claims._holder.replace("@", "@0")  # an earlier process with its id
    for holder in ("elsewhere/boot/1@1/x", killed):
        assert claims(database, holder).claim(["verify"]) is not None
        if holder != killed:
            worker_of(database, answered).work_off("store")
            assert operation(database, id).state == "running"
            claim_is_over(database, id)
    worker_of(database, answered).work_off("store")
    assert operation(database, id).state == "succeeded"


def test_one_operation_on_the_store_at_a_time(database: Database) -> None:
    under_way = asked_for(database)
    for kind in ("verify", "collect"):
        with pytest.raises(Conflict, match=f"verify {under_way}"):
            claims(database, "me").begin(kind, "another", lambda session: (None, Request()), "default")  # type: ignore[arg-type]


def test_a_control_plane_that_ends_in_order_hands_over_at_once(database: Database) -> None:
    unending = Unending()
    with control_plane(database, unending) as worker:
        id = begin(worker)
        assert unending.begun.wait(20)
    left = operation(database, id)
    assert (left.state, left.claim_holder) == ("running", None)
    with control_plane(database, answered):
        eventually(lambda: operation(database, id).state == "succeeded")


def test_what_nobody_rings_for_is_found(database: Database) -> None:
    """A hint of another control plane's may be lost."""
    with control_plane(database, answered) as worker:
        eventually(lambda: not worker._lanes["store"].service._event.is_set())  # it has looked, and waits
        id = asked_for(database)
        eventually(lambda: operation(database, id).state == "succeeded", seconds=operations.TIDY_SECONDS / 2)


def test_a_process_whose_claim_was_taken_over_ends_its_work(database: Database) -> None:
    id = asked_for(database)
    slow = claims(database, "slow").claim(["verify"])
    claim_is_over(database, id)
    successor = claims(database, "successor").claim(["verify"])
    assert slow is not None and successor is not None and successor.id == id
    for late in (slow.renew, lambda: slow.succeed(Checked(checked="no")), slow.release, slow.check):
        with pytest.raises(Interrupted):
            late()
    successor.succeed(Checked(checked="flights"))
    assert operation(database, id).result == {"checked": "flights"}
    assert claims(database, "slow").claim(["verify"]) is None


def test_a_claim_that_cannot_be_renewed_ends_the_work_before_another_may_begin_it(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = asked_for(database)
    claim = claims(database, "cut off").claim(["verify"])
    assert claim is not None
    claim.check()
    monkeypatch.setattr("epochal.service.catalog.operation_claims.time.monotonic", lambda: claim._held_until)
    with pytest.raises(Interrupted, match="could not be renewed"):
        claim.check()
    until = operation(database, id).claim_until
    assert until is not None and until > now()


def test_what_is_cancelled_ends_and_is_swept_and_says_by_whom(database: Database) -> None:
    unending, swept = Unending(), list[str]()
    worker = worker_of(database, unending, lambda claim, request: swept.append(claim.id))
    worker.open()
    try:
        id = begin(worker)
        assert unending.begun.wait(20)
        asked = worker.cancel(id, "me")
        assert asked.cancel_requested_at is not None and asked.state in ("running", "cancelled")
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


def test_a_cancel_that_is_too_late_for_the_process_is_swept_by_the_next_one(database: Database) -> None:
    id = asked_for(database)
    claims(database, "killed").claim(["verify"])
    claims(database, "another").cancel(id, "me")
    claim_is_over(database, id)
    swept: list[str] = []

    def never(claim: Claim, request: Request) -> Checked:
        raise AssertionError("it is cancelled")

    worker_of(database, never, lambda claim, request: swept.append(claim.id)).work_off("store")
    assert operation(database, id).state == "cancelled" and swept == [id]


def test_work_that_ends_just_as_it_is_cancelled_is_cancelled(database: Database) -> None:
    id = asked_for(database)
    swept: list[str] = []

    def cancelled_meanwhile(claim: Claim, request: Request) -> Checked:
        claims(database, "another").cancel(id, "me")
        return Checked(checked="all")

    worker_of(database, cancelled_meanwhile, lambda claim, request: swept.append(claim.id)).work_off("store")
    ended = operation(database, id)
    assert (ended.state, ended.result, swept) == ("cancelled", None, [id])


def test_what_cannot_be_swept_now_is_swept_later_or_has_failed(database: Database) -> None:
    id = asked_for(database)
    claims(database, "another").cancel(id, "me")
    troubles: list[Exception] = [CatalogUnavailable("not now"), EnvironmentProblem("the store is read-only")]

    def sweep(claim: Claim, request: Request) -> None:
        raise troubles.pop(0)

    worker = worker_of(database, answered, sweep)
    with pytest.raises(CatalogUnavailable):
        worker.work_off("store")
    assert operation(database, id).state == "running"
    worker.work_off("store")
    error = operation(database, id).error
    assert operation(database, id).state == "failed" and error is not None and "read-only" in error["detail"]


def test_work_that_fails_says_why_and_what_nobody_expected_does_not(database: Database) -> None:
    troubles = [
        EnvironmentProblem("the disk is full"),
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/a/full/place"),
        ZeroDivisionError("secret"),
    ]

    def failing(claim: Claim, request: Request) -> Checked:
        raise troubles.pop(0)

    worker = worker_of(database, failing)
    for expected in (
        "the disk is full",
        "There is no space left for /a/full/place. The verify was tried. Make room there",
        "The verify failed; the control plane's log contains the reason",
    ):
        id = asked_for(database)
        worker.work_off("store")
        error = operation(database, id).error
        assert error is not None and error["detail"].startswith(expected)


def test_progress_is_kept(database: Database) -> None:
    seen: list[str | None] = []

    def saying(claim: Claim, request: Request) -> Checked:
        claim.progress("one of two")
        seen.append(operation(database, claim.id).progress)
        return Checked(checked="")

    id = asked_for(database)
    worker_of(database, saying).work_off("store")
    assert seen == ["one of two"] and operation(database, id).progress is None


def test_running_operations_of_a_kind_are_found_oldest_first(database: Database) -> None:
    id = asked_for(database)
    with database.reading() as session:
        assert [row.id for row in OperationRepository(session).running("verify")] == [id]


def test_what_is_cancelled_elsewhere_ends_with_the_next_renewal(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "RENEW_SECONDS", 0.05)
    unending, swept = Unending(), list[str]()
    worker = worker_of(database, unending, lambda claim, request: swept.append(claim.id))
    worker.open()
    try:
        id = begin(worker)
        assert unending.begun.wait(20)
        assert worker_of(database, unending).cancel(id, "me").state == "running"  # of another control plane
        eventually(lambda: operation(database, id).state == "cancelled")
    finally:
        worker.close()
    assert swept == [id]


def test_of_many_operations_each_is_carried_out_by_one_of_many_control_planes(database: Database) -> None:
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


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_what_somebody_is_about_to_claim_is_skipped(database: Database) -> None:
    with database.writing() as session:
        oldest, next = (OperationRepository(session).add("verify", None, None, {}, "me").id for _ in range(2))
    with database.writing() as session:
        OperationRepository(session).locked(oldest)
        claim = claims(database, "me").claim(["verify"])
        assert claim is not None and claim.id == next
        assert claims(database, "another").claim(["verify"]) is None
    claim = claims(database, "another").claim(["verify"])
    assert claim is not None and claim.id == oldest


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_of_two_control_planes_that_begin_to_work_on_the_store_one_does(database: Database) -> None:
    both = threading.Barrier(2)

    def begin(kind: str) -> str | None:
        def wish(session: Any) -> tuple[None, Request]:
            both.wait(20)  # each is within its transaction
            return None, Request()

        try:
            return claims(database, kind).begin(kind, "me", wish, "default").id  # type: ignore[arg-type]
        except Conflict:
            return None

    with ThreadPoolExecutor(2) as pool:
        begun = list(pool.map(begin, ["collect", "verify"]))
    assert sum(id is not None for id in begun) == 1

"""Webhooks with a real receiver: deliveries are signed, in order, and repeated after failures and restarts."""

from __future__ import annotations

from datetime import timedelta

import pytest

from epochal.client.events import verify_signature
from epochal.contracts.catalog import Failure
from epochal.errors import Unauthenticated
from epochal.service.catalog.models import Webhook, WebhookDelivery
from epochal.service.catalog.webhooks import WebhookRepository
from epochal.service.domain.settings import Settings
from epochal.service.runtime import webhooks as deliveries
from tests.kit.waiting import eventually
from tests.service.conftest import Plane
from tests.service.problems import check_problem
from tests.service.webhook_receivers import SECRET, Receiver, add_webhook, running, status_of
from tests.service.webhook_receivers import _no_pauses as _no_pauses
from tests.service.webhook_receivers import local as local
from tests.service.webhook_receivers import plane as plane
from tests.service.webhook_receivers import receiver as receiver

FAILURE = Failure(type="author-error", message="division by zero")


def test_epochs_and_failures_are_delivered_in_order_and_signed(plane: Plane, receiver: Receiver) -> None:
    plane.application()
    plane.application("other")
    driver, other = plane.driver(), plane.driver("other")
    driver.running()
    driver.epoch()
    id = add_webhook(plane, receiver, applications=["flights"])
    commits = Receiver()
    add_webhook(plane, commits, kinds=["epoch.committed"])

    driver.epochs(2)
    other.epoch()
    driver.catalog.open_epoch(4, driver.head_key)
    driver.catalog.abort_epoch(4, FAILURE)
    driver.catalog.finish(FAILURE)
    plane.control.ledger.execution_ended(driver.execution, "failed", FAILURE)

    eventually(lambda: len(receiver.accepted) == 5 and len(commits.accepted) == 3)
    branch = driver.point.branch
    assert [(event["id"], event["kind"]) for event in receiver.accepted] == [
        (f"{branch}/2/committed", "epoch.committed"),
        (f"{branch}/3/committed", "epoch.committed"),
        (f"{branch}/4/aborted", "epoch.aborted"),
        (f"{driver.execution}/1/failed", "attempt.failed"),
        (f"{driver.execution}/failed", "application.failed"),
    ]
    assert {event["application"] for event in receiver.accepted} == {"flights"}
    assert receiver.accepted[0]["data"]["rows_in"] == 2 and receiver.accepted[0]["data"]["state"] == "committed"
    assert all(event["data"]["failure"]["message"] == "division by zero" for event in receiver.accepted[2:])
    assert [event["application"] for event in commits.accepted] == ["flights", "flights", "other"]
    eventually(lambda: bool(status_of(plane, id)["waiting"] == 0 and status_of(plane, id)["delivered_at"]))
    commits.close()


def test_failed_delivery_is_repeated_and_redirects_are_not_followed(plane: Plane, receiver: Receiver) -> None:
    receiver.answers = [500, 302, 204, 503]
    id = add_webhook(plane, receiver)
    plane.application()
    plane.driver().epochs(2)

    eventually(lambda: len(receiver.accepted) == 2)
    assert [event["data"]["epoch"] for event in receiver.received] == [1, 1, 1, 2, 2]
    assert len({event["id"] for event in receiver.received}) == 2
    eventually(lambda: bool(status_of(plane, id)["state"] == "active"))
    assert status_of(plane, id)["last_error"] is None


def test_restart_loses_no_event(local: Settings) -> None:
    receiver = Receiver()
    receiver.close()
    with running(local) as plane:
        id = add_webhook(plane, receiver)
        plane.application()
        plane.driver().epochs(3)
        eventually(lambda: bool(status_of(plane, id)["state"] == "failing"))
        assert status_of(plane, id)["waiting"] == 3 and "Connect" in status_of(plane, id)["last_error"]
    again = Receiver(int(receiver.url.split(":")[2].partition("/")[0]))
    try:
        with running(local):
            eventually(lambda: len(again.accepted) == 3)
    finally:
        again.close()
    assert [event["data"]["epoch"] for event in again.accepted] == [1, 2, 3]


@pytest.mark.parametrize("status", [410, 500])
def test_webhook_that_fails_for_too_long_is_disabled(
    plane: Plane, receiver: Receiver, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if status == 500:
        monkeypatch.setattr(deliveries, "DISABLED_AFTER", timedelta(seconds=-1))
    receiver.answers = [status]
    id = add_webhook(plane, receiver)
    plane.application()
    driver = plane.driver()
    driver.epoch()
    eventually(lambda: bool(status_of(plane, id)["state"] == "disabled"))
    driver.epoch()
    now = status_of(plane, id)
    assert (now["waiting"], now["dropped"], now["last_error"]) == (0, 1, f"the receiver answered {status}")
    assert receiver.accepted == []


def test_oldest_deliveries_over_the_limit_are_dropped_and_counted(plane: Plane, receiver: Receiver) -> None:
    id = add_webhook(plane, receiver, kinds=["application.failed"])
    with plane.control.database.writing() as session:
        session.get_one(Webhook, id).disabled_at = session.get_one(Webhook, id).created_at
        for number in range(5):
            for webhook in (id, "deleted"):
                session.add(WebhookDelivery(webhook=webhook, event=str(number), kind="k", body="{}"))
        session.flush()
        WebhookRepository(session).bound(3)
        remaining = [(row.webhook, row.event) for row in session.query(WebhookDelivery).order_by(WebhookDelivery.id)]
    assert remaining == [(id, "2"), (id, "3"), (id, "4")] and status_of(plane, id)["dropped"] == 2


def test_webhooks_are_listed_and_deleted_without_their_secrets(plane: Plane, receiver: Receiver) -> None:
    body, key = {"url": receiver.url, "kinds": ["epoch.committed"]}, {"Idempotency-Key": "once"}
    made, again = (plane.client.post("/v1/webhooks", json=body, headers=key).json() for _ in range(2))
    assert made["secret"].startswith("whsec_") and again == {**made, "secret": None}
    del again["secret"]
    assert plane.get("/v1/webhooks")["items"] == [again]
    check_problem(plane.as_bearer(plane.token("author")).get("/v1/webhooks"), 403, "forbidden")

    assert plane.client.delete(f"/v1/webhooks/{made['id']}").status_code == 204
    check_problem(plane.client.delete(f"/v1/webhooks/{made['id']}"), 404, "not-found")
    assert plane.get("/v1/webhooks")["items"] == []


def test_receiver_refuses_forged_altered_or_old_requests() -> None:
    body = b'{"id":"a"}'
    good = deliveries.signature(SECRET, 1_000, body)
    verify_signature(SECRET, good, body, tolerance_seconds=float("inf"))
    for secret, signature, content in (
        ("another", good, body),
        (SECRET, good, body + b" "),
        (SECRET, good.replace("t=1000", "t=1001"), body),
        (SECRET, "v1=abc", body),
        (SECRET, "", body),
    ):
        with pytest.raises(Unauthenticated):
            verify_signature(secret, signature, content, tolerance_seconds=float("inf"))
    with pytest.raises(Unauthenticated, match="older"):
        verify_signature(SECRET, good, body)

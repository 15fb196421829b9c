"""The commands for operations, webhooks and artifacts: text, JSON, exit codes and widths of tables."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from epochal.service.catalog.operation_claims import Claim
from tests.kit.waiting import eventually
from tests.service.bundles import EXPORT, with_state
from tests.service.cli.conftest import Answer, CommandLine
from tests.service.conftest import Plane
from tests.service.test_cancel import halted

URL = "https://example.com/a/rather/long/path/that/does/not/fit/where/there/are/eighty/columns/only"


@pytest.fixture
def epochal(plane: Plane) -> CommandLine:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("EPOCHAL_")}
    return CommandLine(inherited | plane.environment | {"EPOCHAL_HOME": str(plane.settings.data)})


def refused(answer: Answer, code: int, *expected: str) -> None:
    assert answer.code == code, answer
    assert answer.output == "" and "Traceback" not in answer.stderr
    for part in expected:
        assert part in answer.stderr


def fits(answer: Answer, columns: int = 80) -> str:
    assert answer.code == 0, answer
    assert max(map(len, answer.output.splitlines())) <= columns
    return answer.output


def verified(plane: Plane) -> dict[str, Any]:
    id = plane.post("/v1/verifications")["id"]
    eventually(lambda: plane.get(f"/v1/operations/{id}")["state"] == "succeeded")
    return dict(plane.get(f"/v1/operations/{id}"))


def test_operations_are_listed_and_shown(plane: Plane, epochal: CommandLine) -> None:
    assert "No operations." in epochal("operations", "list").output
    assert epochal("operations", "list", "--json").document == {"items": []}
    done = verified(plane)
    plane.application()
    start = plane.get("/v1/operations")["items"][0]

    lines = epochal("operations", "list").output.splitlines()
    assert lines[0].split() == ["OPERATION", "KIND", "APPLICATION", "STATE", "STARTED", "PROGRESS"]
    assert [line.split()[:4] for line in lines[1:]] == [
        [start["id"], "start", "flights", "running"],
        [done["id"], "verify", "-", "succeeded"],
    ]
    assert start["id"] in fits(epochal("operations", "list", COLUMNS="80"))
    assert epochal("operations", "list", "--limit", "1", "--json").document["items"] == [start]
    assert epochal("operations", "show", done["id"], "--json").document == done
    assert done["id"] in fits(epochal("operations", "show", done["id"], COLUMNS="80"))


@pytest.mark.alternating(2)
def test_a_running_operation_is_cancelled(plane: Plane, epochal: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    with_state(plane)
    with halted(monkeypatch) as halting:
        id = plane.post(EXPORT)["id"]
        assert halting.wait(30)
        answer = epochal("operations", "cancel", id)
    assert (answer.code, answer.output.strip()) == (0, f"Operation export {id} is cancelled.")
    assert "cancelled" in epochal("operations", "show", id).output
    document = epochal("operations", "cancel", id, "--json").document  # a repeated cancel has no effect
    assert (document["state"], document["id"]) == ("cancelled", id)


def test_cancel_without_waiting_returns_immediately(
    plane: Plane, epochal: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_state(plane)
    release = threading.Event()
    monkeypatch.setattr(Claim, "progress", lambda claim, text: (release.wait(30), claim.check()))
    id = plane.post(EXPORT)["id"]
    answer = epochal("operations", "cancel", id, "--no-wait")
    assert (answer.code, answer.output.strip()) == (0, f"Operation export {id} is being cancelled.")
    assert "cancelling" in epochal("operations", "list").output
    assert epochal("operations", "show", id, "--json").document["cancel_requested_at"] is not None
    release.set()
    eventually(lambda: plane.get(f"/v1/operations/{id}")["state"] == "cancelled")


@pytest.mark.alternating(2)
def test_refused_cancellations_state_the_reason(plane: Plane, epochal: CommandLine) -> None:
    done = verified(plane)["id"]
    plane.application()
    started = plane.get("/v1/operations")["items"][0]["id"]
    refused(epochal("operations", "cancel", done), 4, "has already succeeded")
    refused(epochal("operations", "cancel", started), 4, "stop the application")
    for verb in ("cancel", "show"):
        refused(epochal("operations", verb, "nothing"), 3, "nothing")
    refused(epochal("operations", "cancel", started, EPOCHAL_TOKEN=plane.token("viewer")), 6, "operator")
    failed = epochal("operations", "cancel", done, "--json")
    assert (failed.code, failed.document["error"]["type"]) == (4, "conflict")


def test_webhooks_are_created_listed_and_deleted(plane: Plane, epochal: CommandLine) -> None:
    assert epochal("webhooks", "list", "--json").document == {"items": []}
    plain = epochal("webhooks", "create", URL, "--kind", "epoch.committed", "-k", "epoch.aborted", "--app", "flights")
    assert plain.code == 0 and "Store its secret" in plain.stderr
    (made,) = plane.get("/v1/webhooks")["items"]
    assert plain.output.strip().startswith("whsec_") and made["id"] in plain.stderr
    assert (made["url"], made["kinds"], made["applications"]) == (
        URL,
        ["epoch.aborted", "epoch.committed"],
        ["flights"],
    )

    own = epochal(
        "webhooks", "create", URL, "-k", "attempt.failed", "--json", EPOCHAL_WEBHOOK_SECRET="sixteen-or-more-chars"
    ).document
    assert own["secret"] == "sixteen-or-more-chars" and own["applications"] is None

    listed = epochal("webhooks", "list", "--json").document["items"]
    assert [item["id"] for item in listed] == [made["id"], own["id"]]
    assert all("secret" not in item for item in listed)
    for columns in ("120", "80"):
        output = fits(epochal("webhooks", "list", COLUMNS=columns), int(columns))
        assert made["id"] in output and "active" in output and "never" in output and "whsec_" not in output

    answer = epochal("webhooks", "delete", made["id"])
    assert (answer.code, answer.output.strip()) == (0, f"Webhook {made['id']} is deleted.")
    assert epochal("webhooks", "delete", own["id"], "--json").document == {"deleted": own["id"]}
    assert plane.get("/v1/webhooks")["items"] == []


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["delete", "nothing"], 3, "nothing"),
        (["create", URL], 2, "--kind"),
        (["create", URL, "-k", "epoch.invented"], 2, "epoch.invented"),
        (["create", "ftp://example.com", "-k", "epoch.committed"], 1, "url"),
        (["create", "http://127.0.0.1/", "-k", "epoch.committed"], 1, "127.0.0.1"),
        (["create", URL, "-k", "epoch.committed", "--secret", "short"], 1, "secret"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_invalid_webhook_commands_are_refused(
    epochal: CommandLine, arguments: list[str], code: int, expected: str
) -> None:
    refused(epochal("webhooks", *arguments), code, expected)


def test_webhook_commands_need_an_administrator(plane: Plane, epochal: CommandLine) -> None:
    token = plane.token("author")
    attempts: list[Callable[[], Answer]] = [
        lambda: epochal("webhooks", "list", EPOCHAL_TOKEN=token),
        lambda: epochal("webhooks", "create", URL, "-k", "epoch.committed", EPOCHAL_TOKEN=token),
        lambda: epochal("webhooks", "delete", "nothing", EPOCHAL_TOKEN=token),
    ]
    for attempt in attempts:
        refused(attempt(), 6, "admin")


def test_artifacts_of_versions_cannot_be_deleted(plane: Plane, epochal: CommandLine) -> None:
    unused = plane.artifact(unused=1)
    used = plane.application()["artifact"]
    assert unused[:8] in fits(epochal("artifacts", "list", COLUMNS="80"))
    refused(epochal("artifacts", "delete", used), 4, "version 1 of 'flights'")
    refused(epochal("artifacts", "delete", "nothing"), 3, "epochal artifacts list")
    refused(epochal("artifacts", "delete", ""), 1, "2 artifacts begin with")
    refused(epochal("artifacts", "delete", unused, EPOCHAL_TOKEN=plane.token("viewer")), 6)
    answer = epochal("artifacts", "delete", unused[:10])
    assert (answer.code, answer.output.strip()[:9]) == (0, "Artifact ")
    assert [item["sha256"] for item in epochal("artifacts", "list", "--json").document["items"]] == [used]

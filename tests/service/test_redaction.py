"""Secrets in unexpected places: planted in every input, and searched for in every output."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from epochal.contracts.catalog import Failure
from epochal.logs import JsonFormatter, TextFormatter
from epochal.secrets import redact, secret
from tests.service.conftest import Plane

IN_A_VARIABLE, IN_A_FILE, IN_A_URL = "pl4nted-variable", 'pl4nted"file', "pl4nted-url"
OF_THE_STORE = "pl4nted-access-key"
WEBHOOK_SECRET = "whsec_pl4nted-receiver-of-webhooks"


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """All log records, in both formats."""
    stream, root = io.StringIO(), logging.getLogger()
    handlers = [logging.StreamHandler(stream), logging.StreamHandler(stream)]
    for handler, formatter in zip(handlers, (TextFormatter(), JsonFormatter()), strict=True):
        handler.setFormatter(formatter)
        root.addHandler(handler)
    yield stream
    for handler in handlers:
        root.removeHandler(handler)


@pytest.fixture
def planted(plane: Plane, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    monkeypatch.setenv("EPOCHAL_SECRET_PLANTED", IN_A_VARIABLE)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", OF_THE_STORE)
    (tmp_path / "password").write_text(IN_A_FILE + "\n")
    assert secret(f"file:{tmp_path / 'password'}").reveal() == IN_A_FILE
    admin = plane.settings.admin_token_file.read_text().strip()
    return [IN_A_VARIABLE, IN_A_FILE, json.dumps(IN_A_FILE)[1:-1], IN_A_URL, OF_THE_STORE, WEBHOOK_SECRET, admin]


def test_secrets_appear_in_no_answer_and_no_log(plane: Plane, planted: list[str], logged: io.StringIO) -> None:
    plane.application()
    driver = plane.driver()
    plane_token, driver_token = plane.post("/v1/tokens", 201, name="ci", role="viewer")["token"], driver.ticket.token
    planted += [plane_token, driver_token]
    used = f"{IN_A_VARIABLE}, {IN_A_FILE}, {driver_token}, {OF_THE_STORE}"
    message = f"cannot log in to kafka://ann:{IN_A_URL}@host with {used}"
    failure = Failure(type="author-error", message=message, step="sink", traceback=f"Traceback\n  {message}")
    hook = {"url": "http://192.0.2.1/", "kinds": ["epoch.committed"], "secret": WEBHOOK_SECRET}

    answers = [
        plane.client.delete(f"/v1/tokens/{plane_token}"),
        plane.client.get(f"/v1/applications/{driver_token}"),
        plane.client.post(f"/v1/applications/{plane_token}/start"),
        plane.client.post("/v1/webhooks", json={**hook, "url": f"http://ann:{IN_A_URL}@192.0.2.1/"}),
        plane.client.post("/v1/webhooks", json={**hook, "nonsense": plane_token}),
        plane.as_bearer(f"{plane_token}x").get("/v1/applications"),
        plane.client.get("/v1/applications", params={"cursor": plane_token}),
        plane.client.get(f"/v1/applications/x/snapshots/{IN_A_VARIABLE}/lineage"),
    ]
    assert all(answer.is_client_error for answer in answers)
    assert plane.client.post("/v1/webhooks", json=hook).status_code == 201
    driver.epoch()
    driver.catalog.open_epoch(2, driver.head_key)
    driver.catalog.abort_epoch(2, failure)
    driver.catalog.finish(failure)
    plane.control.ledger.attempt_ended(driver.execution, driver.attempt, "failed", failure)
    try:
        raise ValueError(message)
    except ValueError:
        logging.getLogger("epochal").exception("failed: %s", message)

    application = "/v1/applications/flights"
    paths = [
        application,
        *(f"{application}/{part}" for part in ("executions", "epochs", "versions", "lineage", "snapshots")),
        "/v1/audit",
        "/v1/webhooks",
        "/v1/tokens",
        "/v1/applications",
        "/v1/operations",
        "/metrics",
    ]
    shown = {path: plane.client.get(path).text for path in paths}
    shown |= {f"{answer.request.method} {answer.request.url.path}": answer.text for answer in answers}
    shown["the log"] = logged.getvalue()
    assert "author-error" in shown[f"{application}/executions"] and "cannot log in" in shown["the log"]
    found = {place: text for place, whole in shown.items() for text in planted if text in whole}
    assert found == {}


def test_other_text_is_not_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPOCHAL_SECRET_EMPTY", "")
    monkeypatch.setenv("EPOCHAL_SECRET_SHORT", "no")
    for text in ("no such file: /data/no", "http://host:8765/v1", "ann@example.com", "epd_ and ept_ are tokens"):
        assert redact(text) == text
    assert redact("postgresql://ann:word@host/name") == "postgresql://ann:***@host/name"

"""``helm upgrade`` and ``helm rollback`` under load: no driver is restarted, and no call fails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from epochal.client import Client
from tests.kubernetes.installed.applications import Counted, Scripted, trace
from tests.kubernetes.installed.installation import IMAGE, NAMESPACE, Installation
from tests.service.availability.clients import ClientLoad

pytestmark = [pytest.mark.server, pytest.mark.long, pytest.mark.timeout(1800)]


def test_upgrade_and_rollback_disturb_no_driver_and_no_caller(installed: Installation) -> None:
    """The catalog is migrated first; control planes and query nodes are then replaced one by one."""
    trace(installed)
    with installed.client() as client:
        scripted = [Scripted(installed, client, f"upgraded-{number}") for number in range(2)]
        for application in scripted:
            application.submit()
        counted = Counted(installed, client, "upgraded")
        counted.submit()
        for each in (*scripted, counted):
            each.wait_for_epoch(2)
        before = _drivers([*scripted, counted])

        with _load(installed, [each.name for each in scripted]) as load:
            installed.upgrade(image={"tag": "next"}, control={"podAnnotations": {"example.com/why": "upgrade"}})
            assert _images(installed) == {f"{IMAGE}:next"}
            assert _migrations(installed) == 1
            for each in (*scripted, counted):
                each.wait_for_more_epochs()

            installed.rollback()
            assert f"{IMAGE}:next" not in _images(installed)
            for each in (*scripted, counted):
                each.wait_for_more_epochs()
        assert list(load.problems) == []
        assert load.lookups and load.operations

        assert _drivers([*scripted, counted]) == before
        assert list(counted.problems()) == []
        _stop(client, [each.name for each in (*scripted, counted)])
    assert [problem for each in scripted for problem in each.problems()] == []


@contextmanager
def _load(installed: Installation, names: Sequence[str]) -> Iterator[ClientLoad]:
    """Run look-ups, savepoints and exports through the release's public address."""
    load = ClientLoad(installed.public.url, installed.token, names, seed=1)
    load.start()
    try:
        yield load
    finally:
        load.stop()


def _drivers(applications: Sequence[Counted | Scripted]) -> dict[str, Any]:
    """Return pod and attempt of each driver; both change with a restart."""
    return {each.name: (each.driver["metadata"]["uid"], each.attempt) for each in applications}


def _images(installed: Installation) -> set[str]:
    pods = {**installed.component("control"), **installed.component("query")}
    return {pod["spec"]["containers"][0]["image"] for pod in pods.values()}


def _migrations(installed: Installation) -> int:
    """Return the number of completed migration Jobs, from events, because Helm removes the Jobs."""
    events = installed.cluster.get(f"/api/v1/namespaces/{NAMESPACE}/events")["items"]
    done = [
        event
        for event in events
        if event["involvedObject"]["kind"] == "Job"
        and event["involvedObject"]["name"] == "epochal-migration"
        and event["reason"] == "Completed"
    ]
    return len({event["involvedObject"]["uid"] for event in done})


def _stop(client: Client, names: Sequence[str]) -> None:
    for operation in [client.applications.stop(name) for name in names]:
        client.operations.wait(operation, timeout_seconds=120)

"""Excessive submissions and look-ups are refused and do not delay calls of drivers."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from epochal.client import Client
from epochal.pipeline.description import GraphDescription
from epochal.service.domain.setting_sections import Limits
from epochal.service.domain.settings import Settings
from tests.kit.waiting import eventually
from tests.service.conftest import Plane, StandInBuilder, StandInSupervisor, serving


@dataclass
class HeldBuilder(StandInBuilder):
    """Builds wait until ``go`` is set; ``begun`` counts them."""

    go: threading.Event = field(default_factory=threading.Event)
    begun: int = 0

    def describe(
        self, project: str, artifact: Path, parameters: Mapping[str, Any], configuration: object = None
    ) -> GraphDescription:
        self.begun += 1
        assert self.go.wait(60)
        return super().describe(project, artifact, parameters, configuration)


SUBMISSIONS = 42
THREADS = 40
"""The number of threads in which FastAPI runs synchronous functions."""


@pytest.fixture
def builder() -> HeldBuilder:
    return HeldBuilder()


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"limits": Limits(builds=2, builds_waiting=3)})


@pytest.fixture
def plane(settings: Settings, builder: HeldBuilder) -> Iterator[Plane]:
    """A control plane with one application; further builds wait for ``builder.go``."""
    supervisor = StandInSupervisor()
    with serving(settings, supervisor, builder) as (control, token):
        headers = {"Authorization": f"Bearer {token}"}
        limits = httpx.Limits(max_connections=100)
        with httpx.Client(base_url=settings.url, headers=headers, trust_env=False, timeout=60, limits=limits) as client:
            plane = Plane(control, client, settings, supervisor, [])
            builder.go.set()
            plane.application()
            builder.go.clear()
            builder.begun = 0
            yield plane
            builder.go.set()


def test_slow_submissions_do_not_delay_drivers_and_readers(plane: Plane, builder: HeldBuilder) -> None:
    driver, artifact = plane.driver(), plane.artifact()

    def submit(number: int) -> httpx.Response:
        body = {"name": f"slow-{number}", "artifact": artifact, "parameters": {"out": f"/data/{number}"}}
        return plane.client.post("/v1/applications", json=body)

    with ThreadPoolExecutor(SUBMISSIONS) as pool:
        submissions = [pool.submit(submit, number) for number in range(SUBMISSIONS)]
        try:
            eventually(lambda: sum(submission.done() for submission in submissions) == SUBMISSIONS - 5)

            assert driver.running() == []
            assert plane.client.get("/readyz").status_code == 200
            assert plane.get("/v1/applications")["items"]
            refused = [submission.result() for submission in submissions if submission.done()]
            assert len(refused) == SUBMISSIONS - 5 and builder.begun == 2  # no build has ended yet
        finally:
            builder.go.set()
        wait(submissions)

    assert {answer.status_code for answer in refused} == {429}
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    assert refused[0].json()["type"] == "urn:epochal:problem:too-many-requests"
    created = [item.result() for item in submissions if item.result().status_code == 201]
    assert len(created) == 5 == builder.begun


def test_the_client_repeats_a_refused_submission_with_its_key(plane: Plane, builder: HeldBuilder) -> None:
    """The refusal must not be stored as the answer for the idempotency key."""
    artifact = plane.artifact()
    token = plane.admin_token

    def submit(number: int) -> str:
        with Client(plane.settings.url, token) as client:
            return client.applications.create(f"slow-{number}", artifact, parameters={"out": f"/data/{number}"}).name

    with ThreadPoolExecutor(6) as pool:
        submissions = [pool.submit(submit, number) for number in range(6)]
        eventually(lambda: 'status="429"' in plane.client.get("/metrics").text)
        assert not any(submission.done() for submission in submissions)
        builder.go.set()

    assert [submission.result() for submission in submissions] == [f"slow-{number}" for number in range(6)]


def test_drivers_are_served_while_all_shared_connections_are_in_use(plane: Plane) -> None:
    driver = plane.driver()

    with ExitStack() as taken:
        for _ in range(plane.settings.pools.requests):
            taken.enter_context(plane.control.database.engine.connect())

        assert driver.running() == []
        driver.epochs(2)
        assert plane.control.ledger.supervised().executions


def test_drivers_are_served_while_all_shared_threads_are_busy(
    plane: Plane, monkeypatch: pytest.MonkeyPatch, builder: HeldBuilder
) -> None:
    driver = plane.driver()
    held: list[int] = []

    def page(_page: object, _project: str) -> None:
        held.append(1)
        assert builder.go.wait(60)
        raise AssertionError("unused answer")

    monkeypatch.setattr(plane.control.registered, "applications", page)
    with ThreadPoolExecutor(THREADS) as pool:
        readers = [pool.submit(plane.client.get, "/v1/applications") for _ in range(THREADS)]
        eventually(lambda: len(held) == THREADS)

        driver.epochs(2)
        assert driver.running() == []
        assert not any(reader.done() for reader in readers)
        builder.go.set()

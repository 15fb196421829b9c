"""The walks in docs/architecture.md list the files that are executed when a verb is called."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from epochal.service.app import create_app
from epochal.service.domain.settings import Settings
from tests.service.conftest import Plane, StandInBuilder, StandInSupervisor, free_port, http_client, serving_app
from tests.service.listening import listening_here
from tests.service.lookups import DELAYS, KEYS, StateDriver, route

ROOT = Path(__file__).parents[2]
MAX_FILES = 5
LAYERS = ("service/api/", "service/commands/", "service/queries/")
"""A walk lists every file of these layers that its verb executes; of the layers below, it lists the main ones."""


@dataclass
class Traced:
    """Files of the checkout with a called function, in this thread and in threads that start in the meantime."""

    files: set[str] = field(default_factory=set)

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            self.files.add(frame.f_code.co_filename)

    @contextmanager
    def on(self) -> Iterator[None]:
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    @property
    def relative(self) -> set[str]:
        paths = (Path(file).resolve() for file in self.files)
        return {path.relative_to(ROOT).as_posix() for path in paths if path.is_relative_to(ROOT)}


def section() -> str:
    text = (ROOT / "docs/architecture.md").read_text()
    return text.partition("### Four walks")[2].partition("\n## ")[0]


def walk(verb: str) -> list[str]:
    """The files of the walk, in its order."""
    _, _, text = section().partition(f"**{verb}**")
    return re.findall(r"`((?:service|epochal)/[\w/]+\.py)`", text.partition("\n\n")[0])


def shared() -> set[str]:
    """Files that every request executes."""
    _, _, text = section().partition("Every request passes")
    return set(re.findall(r"`(service/[\w/]+\.py)`", text.partition("\n\n")[0]))


@pytest.fixture
def app(settings: Settings) -> FastAPI:
    return create_app(settings, lambda *_: StandInBuilder(), lambda *_: StandInSupervisor())


@pytest.fixture
def plane(app: FastAPI, settings: Settings) -> Iterator[Plane]:
    with serving_app(app, settings) as (control, token), http_client(settings, token) as client:
        yield Plane(control, client, settings, StandInSupervisor(), [])


def executed(app: FastAPI, plane: Plane, method: str, path: str, times: int = 1, **body: Any) -> set[str]:
    """Files that the last of the requests executes in its own threads."""
    trace, answers = Traced(), []

    async def send() -> None:
        headers = {"Authorization": plane.client.headers["authorization"]}
        async with (
            listening_here(app, free_port()) as url,
            httpx.AsyncClient(base_url=url, headers=headers, trust_env=False) as client,
        ):
            for _ in range(1, times):
                (await client.request(method, path, json=body or None)).raise_for_status()
            with trace.on():
                answers.append(await client.request(method, path, json=body or None))

    thread = threading.Thread(target=lambda: asyncio.run(send()))
    thread.start()
    thread.join()
    assert answers[0].is_success, answers[0].text
    return trace.relative


def in_layers(files: Iterable[str]) -> set[str]:
    return {file for file in files if file.startswith(LAYERS)} - shared()


def check_walk(verb: str, files: set[str]) -> None:
    listed = walk(verb)
    assert 2 <= len(listed) <= MAX_FILES
    assert in_layers(listed) == in_layers(files)
    assert set(listed) <= files


def test_documented_walk_of_a_read_matches_the_executed_files(app: FastAPI, plane: Plane) -> None:
    plane.application()
    check_walk("Read", executed(app, plane, "GET", "/v1/applications/flights/executions"))


def test_documented_walk_of_a_submit_matches_the_executed_files(app: FastAPI, plane: Plane) -> None:
    artifact = plane.artifact()
    body = {"name": "flights", "artifact": artifact, "parameters": {"out": "/data/flights"}}
    check_walk("Submit", executed(app, plane, "POST", "/v1/applications", **body))


def test_documented_walk_of_a_lookup_matches_the_executed_files(app: FastAPI, plane: Plane) -> None:
    plane.application()
    StateDriver(plane).epoch((DELAYS, [route("JFK", "LAX", 1, 2.5)]))
    plane.get(f"{KEYS}JFK,LAX", min_epoch=1)  # waits until the replica has the epoch
    # The first request takes the route, which caches token and table.
    check_walk("Look-up", executed(app, plane, "GET", f"{KEYS}JFK,LAX", times=2))


def test_documented_walk_of_a_fork_matches_the_executed_files(app: FastAPI, plane: Plane) -> None:
    plane.application()
    driver = plane.driver()
    driver.running()
    driver.epochs(2)
    body = {"name": "again", "epoch": 2, "parameters": {"out": "/data/again"}}
    check_walk("Fork", executed(app, plane, "POST", "/v1/applications/flights/fork", **body))


def test_documented_files_of_every_request_match_the_executed_ones(app: FastAPI, plane: Plane) -> None:
    plane.application(start=False)
    files = executed(app, plane, "GET", "/v1/applications/flights")
    files |= executed(app, plane, "DELETE", "/v1/applications/flights")
    assert {file for file in files if file.startswith("service/api/")} == shared() | {"service/api/applications.py"}

"""The walks of docs/architecture.md: a verb's code, file by file, is what really runs when the verb is called."""

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
MOST_FILES = 5
OF_VERBS = ("service/api/", "service/commands/", "service/queries/")
"""All that a verb passes in these layers stands in its walk; of the layers below, what it is about."""


@dataclass
class Traced:
    """The checkout's files of which a function was called, in this thread and in those that begin while it is on."""

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
    """What every request passes."""
    _, _, text = section().partition("Every request passes")
    return set(re.findall(r"`(service/[\w/]+\.py)`", text.partition("\n\n")[0]))


@pytest.fixture
def app(settings: Settings) -> FastAPI:
    return create_app(settings, lambda *_: StandInBuilder(), lambda *_: StandInSupervisor())


@pytest.fixture
def plane(app: FastAPI, settings: Settings) -> Iterator[Plane]:
    with serving_app(app, settings) as (control, token), http_client(settings, token) as client:
        yield Plane(control, client, settings, StandInSupervisor(), [])


def called(app: FastAPI, plane: Plane, method: str, path: str, times: int = 1, **body: Any) -> set[str]:
    """The files that a request's own threads pass, the last time that it is made."""
    traced, answers = Traced(), []

    async def ask() -> None:
        headers = {"Authorization": plane.client.headers["authorization"]}
        async with (
            listening_here(app, free_port()) as url,
            httpx.AsyncClient(base_url=url, headers=headers, trust_env=False) as client,
        ):
            for _ in range(1, times):
                (await client.request(method, path, json=body or None)).raise_for_status()
            with traced.on():
                answers.append(await client.request(method, path, json=body or None))

    thread = threading.Thread(target=lambda: asyncio.run(ask()))
    thread.start()
    thread.join()
    assert answers[0].is_success, answers[0].text
    return traced.relative


def of_verbs(files: Iterable[str]) -> set[str]:
    return {file for file in files if file.startswith(OF_VERBS)} - shared()


def assert_is_the_walk(verb: str, files: set[str]) -> None:
    listed = walk(verb)
    assert 2 <= len(listed) <= MOST_FILES
    assert of_verbs(listed) == of_verbs(files)
    assert set(listed) <= files


def test_read(app: FastAPI, plane: Plane) -> None:
    plane.application()
    assert_is_the_walk("Read", called(app, plane, "GET", "/v1/applications/flights/executions"))


def test_submit(app: FastAPI, plane: Plane) -> None:
    artifact = plane.artifact()
    body = {"name": "flights", "artifact": artifact, "parameters": {"out": "/data/flights"}}
    assert_is_the_walk("Submit", called(app, plane, "POST", "/v1/applications", **body))


def test_look_up(app: FastAPI, plane: Plane) -> None:
    plane.application()
    StateDriver(plane).epoch((DELAYS, [route("JFK", "LAX", 1, 2.5)]))
    plane.get(f"{KEYS}JFK,LAX", min_epoch=1)  # the replica has the epoch
    # The first one takes the ordinary way, on which token and table become known.
    assert_is_the_walk("Look-up", called(app, plane, "GET", f"{KEYS}JFK,LAX", times=2))


def test_fork(app: FastAPI, plane: Plane) -> None:
    plane.application()
    driver = plane.driver()
    driver.running()
    driver.epochs(2)
    body = {"name": "again", "epoch": 2, "parameters": {"out": "/data/again"}}
    assert_is_the_walk("Fork", called(app, plane, "POST", "/v1/applications/flights/fork", **body))


def test_what_every_request_passes(app: FastAPI, plane: Plane) -> None:
    plane.application(start=False)
    passed = called(app, plane, "GET", "/v1/applications/flights")
    passed |= called(app, plane, "DELETE", "/v1/applications/flights")
    assert {file for file in passed if file.startswith("service/api/")} == shared() | {"service/api/applications.py"}

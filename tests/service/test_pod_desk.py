"""The local socket between the two processes of a control plane, either of which can terminate at any time."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from epochal.errors import LauncherUnavailable, NotFound, Unauthenticated
from epochal.service.domain.kubernetes.pod_identity import PodIdentity
from epochal.service.runtime.kept_pods import PodDesk, PodDeskClient

WORK = b"{}" * 100_000
ONE = PodIdentity("team-a", "one", "uid-one", "epochal-builder")


@pytest.fixture
def desk(tmp_path: Path) -> Any:
    folder = tmp_path / ("a" * 120) / "pods"
    folder.parent.mkdir()
    desk = PodDesk(folder)
    desk.open()
    yield desk
    desk.close()


def registered_client(desk: PodDesk) -> PodDeskClient:
    desk.expect("one")
    desk.identify("one", ONE.reference)
    return PodDeskClient(desk._folder)


def test_waiting_pod_receives_its_work(desk: PodDesk) -> None:
    client = registered_client(desk)
    threading.Timer(0.2, lambda: desk.give("one", WORK)).start()
    assert asyncio.run(client.work("one", ONE, True, 30.0)) == WORK
    assert desk.is_ready("one") and desk.has_begun("one")


def test_waiting_pod_is_refused_when_it_is_removed(desk: PodDesk) -> None:
    client = registered_client(desk)
    threading.Timer(0.2, lambda: desk.forget("one")).start()
    with pytest.raises(NotFound):
        asyncio.run(client.work("one", ONE, True, 30.0))


def test_caller_waits_for_the_answer(desk: PodDesk) -> None:
    client = registered_client(desk)
    draft = client.draft("one")
    draft.write_bytes(b"answer")
    threading.Timer(0.2, lambda: asyncio.run(client.answer("one", ONE, draft))).start()
    while desk.answer("one") is None:
        desk.wait("one", 30.0)
    assert desk.answer("one") == b"answer"


CALLER = """
import asyncio, sys
from pathlib import Path
from epochal.service.domain.kubernetes.pod_identity import PodIdentity
from epochal.service.runtime.kept_pods import PodDeskClient
client, one = PodDeskClient(Path(sys.argv[1])), PodIdentity(*sys.argv[2:])
print("calls", flush=True)
asyncio.run(client.work("one", one, True, 600.0))
"""


def test_state_survives_a_killed_caller(desk: PodDesk) -> None:
    client = registered_client(desk)
    command = [sys.executable, "-c", CALLER, str(desk._folder), "team-a", "one", "uid-one", "epochal-builder"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"calls\n"
        process.kill()
    desk.give("one", WORK)
    assert asyncio.run(client.work("one", ONE, False, 0.0)) == WORK
    assert asyncio.run(client.work("one", ONE, False, 0.0)) == WORK


def test_pods_of_a_terminated_control_plane_are_refused(tmp_path: Path) -> None:
    desk = PodDesk(tmp_path / "pods")
    desk.open()
    client = registered_client(desk)
    asyncio.run(client.check("one", ONE))
    (tmp_path / "pods.sock").rename(tmp_path / "left.sock")  # a killed process leaves its socket
    desk.close()
    (tmp_path / "left.sock").rename(tmp_path / "pods.sock")
    with pytest.raises(NotFound):
        asyncio.run(client.check("one", ONE))
    successor = PodDesk(tmp_path / "pods")
    successor.clear("")
    successor.open()
    assert list((tmp_path / "pods").iterdir()) == []
    with pytest.raises(NotFound):
        asyncio.run(client.check("one", ONE))
    successor.close()


def test_other_pods_and_pods_without_a_uid_are_refused(desk: PodDesk) -> None:
    desk.expect("one")
    client = PodDeskClient(desk._folder)
    with pytest.raises(LauncherUnavailable):
        asyncio.run(client.check("one", ONE))
    desk.identify("one", "team-a/one/another-uid")
    with pytest.raises(Unauthenticated):
        asyncio.run(client.check("one", ONE))


def test_only_the_user_of_the_control_plane_reaches_the_socket(desk: PodDesk) -> None:
    assert os.stat(desk._folder.with_name("pods.sock")).st_mode & 0o077 == 0

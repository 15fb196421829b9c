"""``epochal console`` and ``epochal up --open``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from epochal.testing.servers.control_plane import COMMAND, ControlPlane, control_plane
from epochal.testing.servers.process import ServerProcess, free_port
from tests.kit.waiting import eventually

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with control_plane(tmp_path_factory.mktemp("console")) as plane:
        yield plane


def opener(folder: Path) -> tuple[str, Path]:
    """A browser (`BROWSER`) that writes its address to a file."""
    program, found = folder / "browser", folder / "address"
    program.write_text(
        f"#!{sys.executable}\nimport sys, pathlib\npathlib.Path({str(found)!r}).write_text(sys.argv[1])\n"
    )
    program.chmod(0o700)
    return f"{program} %s", found


def sign_in(url: str) -> int:
    base, _, fragment = url.partition("#")
    assert fragment.startswith("code=epc_")
    code = fragment.removeprefix("code=")
    address = base.partition("/console/")[0]
    headers = {"Authorization": f"Bearer {code}"}
    return httpx.post(f"{address}/v1/session", headers=headers, trust_env=False).status_code


def test_the_link_is_printed_on_one_line_and_signs_in_once(plane: ControlPlane) -> None:
    lines = plane.run("console", "--seconds", "30", columns=40).stdout.splitlines()
    (link,) = [line for line in lines if line.startswith(f"{plane.url}/console/applications#code=")]
    assert [sign_in(link), sign_in(link)] == [201, 401]


def test_json_has_the_link_and_its_end(plane: ControlPlane) -> None:
    document = json.loads(plane.run("console", "--json").stdout)
    assert set(document) == {"url", "expires_at"}
    assert sign_in(document["url"]) == 201


def test_an_unknown_application_is_refused(plane: ControlPlane) -> None:
    done = plane.run("console", "--application", "missing")
    assert done.returncode == 3
    assert "#code=" not in done.stdout


def test_a_link_that_lasts_too_long_is_refused(plane: ControlPlane) -> None:
    assert plane.run("console", "--seconds", "3601").returncode == 2


def test_the_link_is_printed_where_no_browser_opens(plane: ControlPlane) -> None:
    done = plane.run("console", "--open", columns=40)
    assert done.returncode == 0
    assert f"{plane.url}/console/applications#code=" in done.stdout


def test_the_browser_gets_the_link(plane: ControlPlane, tmp_path: Path) -> None:
    browser, found = opener(tmp_path)
    plane.environment["BROWSER"] = browser
    try:
        done = plane.run("console", "--open")
    finally:
        del plane.environment["BROWSER"]
    assert "#code=" not in done.stdout
    assert sign_in(found.read_text()) == 201


@pytest.mark.parametrize("authentication", [True, False])
def test_up_opens_the_console_when_it_is_ready(tmp_path: Path, authentication: bool) -> None:
    browser, found = opener(tmp_path)
    port = free_port()
    environment = {"EPOCHAL_HOME": str(tmp_path / "home"), "EPOCHAL_WARM_DRIVERS": "0", "BROWSER": browser}
    options = [] if authentication else ["--no-authentication"]
    process = ServerProcess(
        "The control plane",
        [COMMAND, "up", "--open", "--port", str(port), "--internal-port", "0", *options],
        tmp_path / "log",
        dict(os.environ) | {"EPOCHAL_DRIVER_USER": str(os.geteuid())} | environment,
    )
    try:
        eventually(found.exists, 120)
        eventually(lambda: found.read_text() != "", 10)
        address = found.read_text()
        assert address.startswith(f"http://127.0.0.1:{port}/console/applications")
        if authentication:
            assert sign_in(address) == 201
        else:
            assert "#" not in address
    finally:
        process.stop()

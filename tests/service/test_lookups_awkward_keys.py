"""Keys that a path would not carry, through HTTP, the client and the command line: dots, slashes, nothing, hyphens."""

from __future__ import annotations

from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from typing import TYPE_CHECKING

import httpx
import pytest

from epochal.client import Client
from epochal.errors import NotFound
from epochal.service.cli.main import main
from epochal.state.table import StateKind
from tests.service.lookups import StateDriver, table

if TYPE_CHECKING:
    from tests.service.conftest import Plane

NAMES = table("names", StateKind.VALUE, "name string", "length int")
NUMBERS = table("numbers", StateKind.VALUE, "number int", "half double")
AWKWARD = (".", "..", "", "...", "/", "a/b", "../x", "a\\b", "%", "%2E", "a,b", "-", "--", "--epoch", "ü*")


@pytest.fixture
def awkward(plane: Plane) -> Plane:
    plane.application()
    driver = StateDriver(plane, tables=(NAMES, NUMBERS))
    numbers = [{"number": number, "half": number / 2} for number in (-5, 5)]
    names = [{"name": name, "length": len(name)} for name in AWKWARD]
    assert driver.epoch((NAMES, names), (NUMBERS, numbers)) == 1
    return plane


@pytest.fixture
def client(awkward: Plane) -> Client:
    return Client(awkward.settings.url, token=awkward.settings.admin_token_file.read_text().strip())


def test_the_client_finds_every_key(client: Client) -> None:
    state = client.application("flights").state("names")
    for name in AWKWARD:
        answer = state.get(name, min_epoch=1)
        assert (answer.key, answer.value) == ({"name": name}, {"length": len(name)})
        assert state.get(name, epoch=1).value == answer.value
        assert state.blame(name).change.new == answer.value
        assert state.history(name).items[0].new == answer.value
    with pytest.raises(NotFound, match="at epoch 1"):
        state.get("....")
    with pytest.raises(NotFound):
        client.application("..").get()


def test_a_key_in_the_query_answers_as_one_in_the_path(awkward: Plane, client: Client) -> None:
    client.application("flights").state("names").get("a/b", min_epoch=1)
    state = "/v1/applications/flights/state/names/keys"
    in_path, in_query = awkward.client.get(f"{state}/a%2Fb"), awkward.client.get(state, params={"key": "a%2Fb"})
    assert in_query.content == in_path.content
    assert in_query.headers["etag"] == in_path.headers["etag"]
    again = awkward.client.get(state, params={"key": "a%2Fb"}, headers={"If-None-Match": in_path.headers["etag"]})
    assert again.status_code == 304
    assert awkward.client.get(state, params={"key": ".."}).json()["key"] == {"name": ".."}
    assert awkward.client.get(state).status_code == 422
    with awkward.as_bearer(None) as nobody:
        assert nobody.get(state, params={"key": ".."}).status_code == httpx.codes.UNAUTHORIZED


def epochal(*arguments: str) -> tuple[int, str]:
    words = StringIO()
    with redirect_stdout(words), redirect_stderr(words):
        try:
            main(arguments)
        except SystemExit as ended:
            return int(ended.code or 0), words.getvalue()
    return 0, words.getvalue()


def test_the_command_takes_keys_that_look_like_options_after_two_hyphens(
    awkward: Plane, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.application("flights").state("names").get(".", min_epoch=1)
    monkeypatch.setenv("EPOCHAL_URL", awkward.settings.url)
    monkeypatch.setenv("EPOCHAL_TOKEN", awkward.settings.admin_token_file.read_text().strip())
    monkeypatch.setenv("COLUMNS", "200")
    for name in (".", "..", "-", "--epoch"):
        code, words = epochal("get", "flights", "names", "--", name)
        assert (code, words.split()[0], words.split()[-1]) == (0, name, str(len(name)))
    assert epochal("get", "flights", "numbers", "--epoch", "1", "--", "-5")[1].split()[-1] == "-2.5"
    assert "-2.5" in epochal("scan", "flights", "numbers", "--", "-5")[1]
    for verb in ("get", "scan"):
        code, words = epochal(verb, "flights", "numbers", "-5")
        assert (code, f"epochal {verb} .. -- -5" in words) == (2, True), words
    code, words = epochal("get", "flights", "numbers", "--epcoh", "1")
    assert (code, "--epoch" in words, " -- " in words) == (2, True, False), words

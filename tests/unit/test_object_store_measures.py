"""``make bench-object-store``: how requests are counted, and what counts as reached."""

from __future__ import annotations

import pytest

from benchmarks.object_store import requests
from benchmarks.object_store.__main__ import measures
from benchmarks.object_store.places import counted, purposes
from epochal.testing.servers.s3_requests import Answer, Call, Request


def request(method: str, target: str) -> Request:
    return Call(method, target, (), b"").finished(Answer(200), 200, None)


PACK = request("PUT", "/bucket/installation/counts/manifests/0000000001-1-a-120.pack")
BASE = request("PUT", "/bucket/installation/counts/bases/counts-0000000001-0-63-a.parquet")
LISTING = request("GET", "/bucket?list-type=2&prefix=installation/counts/bases/")
DELETION = request("POST", "/bucket?delete")


def test_requests_are_described_by_kind_and_by_part_of_the_store() -> None:
    assert counted([PACK, BASE, LISTING, DELETION]) == "2 PUT, 1 LIST, 1 DELETE"
    assert counted([]) == "none"
    assert purposes([PACK, BASE, LISTING, DELETION]) == {
        "PUT packs": 1,
        "PUT bases": 1,
        "LIST bases": 1,
        "DELETE several objects": 1,
    }


@pytest.mark.parametrize(("more", "idle", "reached"), [(0, 0, [True, True]), (1, 1, [False, False])])
def test_requests_of_an_epoch_are_amortised_and_compared_with_the_budget(
    more: int, idle: int, reached: list[bool]
) -> None:
    found = requests._results([PACK] * 6 + [BASE] * more, [], [LISTING] * idle, epochs=2)
    assert [result.reached for result in found if result.reached is not None] == reached
    assert found[0].measured.strip() == f"{3 + more / 2:.2f}"


def test_the_command_has_the_four_measures() -> None:
    assert list(measures(1, 30.0)) == ["requests", "epochs", "queries", "outage"]

"""Rate limits of tokens: which calls count, and which do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from epochal.service.api.gate import Buckets
from epochal.service.domain.setting_sections import Limits
from epochal.service.domain.settings import Settings

if TYPE_CHECKING:
    from tests.service.conftest import Plane

# No permits are restored during a test.
LIMITS = Limits(calls_per_second=0.001, changes_per_second=0.0005, burst_seconds=10_000)
"""Ten calls, of which five may be mutating calls."""


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"limits": LIMITS})


def test_rate_limiter_allows_a_burst_and_refills_over_time() -> None:
    moment = 0.0
    buckets = Buckets(2.0, 4.0, lambda: moment)
    assert [buckets.take("a") for _ in range(5)] == [0, 0, 0, 0, 0.5]
    assert buckets.take("b") == 0
    moment = 0.5
    assert [buckets.take("a") for _ in range(2)] == [0, 0.5]
    moment = 1000.0
    assert [buckets.take("a") for _ in range(5)] == [0, 0, 0, 0, 0.5]


def test_full_rate_limiters_are_discarded() -> None:
    moment = 0.0
    buckets = Buckets(1.0, 1.0, lambda: moment)
    for number in range(20_000):
        moment += 0.01
        buckets.take(str(number))
    assert len(buckets._left) <= 10_001


@pytest.mark.parametrize("keyed", [False, True])
def test_token_over_its_limit_receives_retry_after(plane: Plane, keyed: bool) -> None:
    with plane.as_bearer(plane.token("viewer")) as viewer, plane.as_bearer(plane.token("author", "other")) as author:
        assert [viewer.get("/v1/applications").status_code for _ in range(11)] == [200] * 10 + [429]
        refused = viewer.get("/v1/applications")
        assert refused.json()["type"] == "urn:epochal:problem:too-many-requests"
        assert "'a-viewer' exceeds the limit of 0.001 calls per second" in refused.json()["detail"]
        assert 1 <= int(refused.headers["retry-after"]) <= 1000
        assert viewer.get("/healthz").is_success  # does not count

        headers = [{"Idempotency-Key": str(number)} if keyed else {} for number in range(6)]
        answers = [author.delete("/v1/applications/nothing", headers=each) for each in headers]
        assert [answer.status_code for answer in answers] == [404] * 5 + [429]
        assert author.get("/v1/applications").is_success  # reading is still allowed
    seen = [(item["token"], item["outcome"]) for item in plane.get("/v1/audit")["items"]]
    assert seen.count(("other", 404)) == 5
    assert 429 not in [outcome for _, outcome in seen]  # refused calls must not fill the audit log


def test_lookups_and_calls_of_entries_are_not_limited(plane: Plane) -> None:
    plane.application(start=False)
    state = "/v1/applications/flights/state/counts"
    with plane.as_bearer(plane.token("operator")) as client:
        for _ in range(15):
            assert client.get(f"{state}/keys/JFK").status_code == 404
            assert client.post(f"{state}/lookup", json={"keys": [["JFK"]]}).status_code in (404, 422)
            assert client.post("/v1/applications/flights/entries/add", json={"call": {}}).status_code in (404, 422)
        assert client.get("/v1/applications").is_success


def test_calls_are_not_limited_without_authentication(settings: Settings, serve: Callable[..., Any]) -> None:
    settings = settings.model_copy(update={"authentication": False})
    with serve(settings), httpx.Client(base_url=settings.url, trust_env=False) as client:
        assert {client.get("/v1/applications").status_code for _ in range(20)} == {200}

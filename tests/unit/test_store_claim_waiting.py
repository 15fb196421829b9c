"""Processes that start wait for a store that does not answer, and end where it refuses their requests."""

from __future__ import annotations

import threading

import pytest

from epochal.errors import EnvironmentProblem, StoreRefuses, StoreUnavailable
from epochal.service.runtime.store_claim import when_available


def test_start_waits_until_the_store_answers() -> None:
    pauses: list[float] = []
    failures = [StoreUnavailable("The store s3://b is not available.")] * 30

    def work() -> None:
        if failures:
            raise failures.pop()

    when_available(work, pauses.append)
    assert len(pauses) == 30 and failures == []
    assert max(pauses) == 4.0


def test_start_ends_where_the_store_refuses_requests() -> None:
    def work() -> None:
        raise StoreRefuses("The store s3://b refuses requests: NoSuchBucket.")

    with pytest.raises(EnvironmentProblem, match=r"NoSuchBucket.*or name another one"):
        when_available(work)


def test_waiting_ends_with_the_process() -> None:
    over = threading.Event()
    tried: list[int] = []

    def work() -> None:
        tried.append(1)
        over.set()
        raise StoreUnavailable("The store s3://b is not available.")

    when_available(work, over.wait)
    assert tried == [1]

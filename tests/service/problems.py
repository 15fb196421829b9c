"""Checks that apply to every problem in an answer."""

from __future__ import annotations

from typing import Any

import httpx

from epochal.wire.problems import Problem


def check_problem(answer: httpx.Response, status: int, slug: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    Problem.model_validate(body)
    assert body["type"] == f"urn:epochal:problem:{slug}"
    assert body["status"] == status
    assert body["instance"] == answer.request.url.path
    assert body["request"] == answer.headers["x-request-id"]
    return dict(body)

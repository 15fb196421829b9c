"""A problem as the answer to a request."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import Response

from epochal.secrets import redact
from epochal.wire.problems import MEDIA_TYPE, Problem


def problem_answer(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    shown = {"detail": redact(problem.detail), "instance": problem.instance and redact(problem.instance)}
    body = problem.model_copy(update=shown).model_dump_json(exclude_none=True)
    return Response(body, status_code=problem.status, media_type=MEDIA_TYPE, headers=dict(headers or {}))

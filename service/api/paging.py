"""``limit`` and ``cursor``, the query parameters of every list."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query, Request

from epochal.service.api.context import query_node
from epochal.service.api.project_paths import project_in
from epochal.service.domain.pages import DEFAULT_LIMIT, LARGEST_LIMIT, CursorSeal, PageRequest

_SUBJECT = ("application", "key", "prefix", "to")
"""Query parameters that choose what a list is about: a cursor is good for the same values only."""


def _page_request(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=LARGEST_LIMIT, description="At most so many items.")] = DEFAULT_LIMIT,
    cursor: Annotated[
        str | None,
        Query(
            max_length=30_000,
            description="`next_cursor` of the previous page of the same list. It is signed, and good for the same "
            "project, path, `key`, `prefix`, `to` and `application`. Another one is refused (400 `invalid-cursor`).",
        ),
    ] = None,
) -> PageRequest:
    return PageRequest.of(limit, cursor, CursorSeal(query_node(request).cursor_key.get(), _listing(request)))


def _listing(request: Request) -> tuple[str, ...]:
    """The path has the full name of the application, and the table."""
    query = request.query_params
    subject = [f"{name}={value}" for name in _SUBJECT for value in query.getlist(name)]
    return (project_in(request.scope), request.scope["path"], *subject)


Paging = Annotated[PageRequest, Depends(_page_request)]

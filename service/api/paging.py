"""``limit`` and ``cursor``, the query parameters of every list."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query

from epochal.service.domain.pages import DEFAULT_LIMIT, LARGEST_LIMIT, PageRequest


def _page_request(
    limit: Annotated[int, Query(ge=1, le=LARGEST_LIMIT, description="At most so many items.")] = DEFAULT_LIMIT,
    cursor: Annotated[str | None, Query(max_length=1000, description="`next_cursor` of the page before.")] = None,
) -> PageRequest:
    return PageRequest(limit, cursor)


Paging = Annotated[PageRequest, Depends(_page_request)]

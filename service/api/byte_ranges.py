"""Answers of which a part can be asked for (RFC 9110, 14): so that a download that broke off is gone on with."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

Read = Callable[[int, int], Iterator[bytes]]
"""The bytes from the first number to before the second."""

_ONE_RANGE = re.compile(r"bytes=(?:(\d{1,19})-(\d{1,19})?|-(\d{1,19}))")


def ranged(request: Request, read: Read, size: int, media_type: str, headers: Mapping[str, str]) -> Response:
    """All of it, or the one range that the request asks for: of several, and of other units, all of it is answered.

    ``headers`` has the ``etag``, which a request's ``If-Range`` has to have for its range to count.
    """
    common = {**headers, "accept-ranges": "bytes"}
    found = _ONE_RANGE.fullmatch(request.headers.get("range", "").strip())
    if found is None or request.headers.get("if-range", headers["etag"]) != headers["etag"]:
        common["content-length"] = str(size)
        return StreamingResponse(read(0, size), media_type=media_type, headers=common)
    first, last, ending = (None if text is None else int(text) for text in found.groups())
    if first is None:
        first, last = max(size - (ending or 0), 0), None
    last = size - 1 if last is None else min(last, size - 1)
    if first > last:
        return Response(status_code=416, headers={**common, "content-range": f"bytes */{size}"})
    common |= {"content-length": str(last + 1 - first), "content-range": f"bytes {first}-{last}/{size}"}
    return StreamingResponse(read(first, last + 1), status_code=206, media_type=media_type, headers=common)

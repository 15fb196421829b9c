"""Bodies and headers of look-ups, assembled from existing JSON fragments."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import orjson
import pyarrow as pa
from starlette.requests import Request
from starlette.responses import Response

from epochal.contracts.identity import EpochKey
from epochal.service.queries.state.lookups import BatchAnswer, BatchColumns, PointAnswer
from epochal.service.queries.state.scans import ScannedColumns
from epochal.wire.state import ARROW_STREAM, NEXT_CURSOR, SINCE, Isolation

Headers = list[tuple[bytes, bytes]]

JSON = b"application/json"
EPOCH_HEADER = b"epochal-epoch"
ARROW_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {"content": {ARROW_STREAM: {"schema": {"type": "string", "format": "binary"}}}}
}
"""OpenAPI description of endpoints that answer in JSON or Arrow."""


def point_body(table: str, answer: PointAnswer, isolation: Isolation) -> bytes:
    """``{table, key, value | entries, instances, branch, epoch, isolation, since}``."""
    member = b"entries" if answer.is_list else b"value"
    what = (b'{"table":', _quoted(table), b',"key":', answer.key, b',"', member, b'":', answer.content)
    each = () if answer.instances is None else (b',"instances":', answer.instances)
    return b"".join((*what, *each, b",", _origin(answer.at, isolation), _since(answer.since), b"}"))


def batch_body(table: str, answer: BatchAnswer, isolation: Isolation) -> bytes:
    """``{table, branch, epoch, isolation, since, values}``."""
    values = b",".join(answer.values)
    origin = _origin(answer.at, isolation) + _since(answer.since)
    return b"".join((b'{"table":', _quoted(table), b",", origin, b',"values":[', values, b"]}"))


def batch_stream(table: str, answer: BatchColumns, isolation: Isolation) -> bytes:
    """Arrow stream of the rows; the schema's metadata has the fields of ``batch_body`` other than the values."""
    return _stream(answer.rows, _said(table, answer.at, isolation, answer.since))


def scan_stream(table: str, found: ScannedColumns, isolation: Isolation) -> bytes:
    """Like :func:`batch_stream`, for a page of a scan: the metadata has the page's fields other than its items,
    where not null."""
    beside = {NEXT_CURSOR: found.next_cursor, "note": found.note}
    further = {name: text for name, text in beside.items() if text is not None}
    return _stream(found.rows, _said(table, found.at, isolation, found.since) | further)


def _said(table: str, at: EpochKey, isolation: Isolation, since: Mapping[str, int]) -> dict[str, str]:
    partial = {SINCE: orjson.dumps(since).decode()} if since else {}
    return {"table": table, "branch": at.branch, "epoch": str(at.epoch), "isolation": isolation} | partial


def _stream(rows: pa.Table, metadata: dict[str, str]) -> bytes:
    said = rows.replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, said.schema) as stream:
        stream.write_table(said)
    return bytes(sink.getvalue())


def takes_arrow(request: Request) -> bool:
    """Return whether the request's Accept header names this media type."""
    accepted = ",".join(request.headers.getlist("accept")).split(",")
    return ARROW_STREAM in (each.partition(";")[0].strip().lower() for each in accepted)


def point_headers(answer: PointAnswer) -> Headers:
    """The entity tag is the value's; the epoch is a header, so that a 304 can include it."""
    return [
        (b"content-type", JSON),
        (b"etag", answer.etag.encode()),
        (b"cache-control", b"private, no-cache"),
        (EPOCH_HEADER, f"{answer.at.branch}/{answer.at.epoch}".encode()),
        (b"x-content-type-options", b"nosniff"),
    ]


def raw(body: bytes, headers: Headers, status: int = 200) -> Response:
    """Answer with exactly these headers."""
    response = Response(body, status_code=status)
    response.raw_headers = [*headers, (b"content-length", str(len(body)).encode())] if status == 200 else headers
    return response


def arrow(stream: bytes) -> Response:
    return raw(stream, [(b"content-type", ARROW_STREAM.encode())])


def matches(if_none_match: str | None, etag: str) -> bool:
    """Return whether the client has this value already (RFC 9110, weak comparison)."""
    if if_none_match is None:
        return False
    known = {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
    return "*" in known or etag.removeprefix("W/") in known


def _since(since: Mapping[str, int]) -> bytes:
    return b',"since":' + orjson.dumps(since) if since else b""


@lru_cache(maxsize=1024)
def _quoted(text: str) -> bytes:
    return orjson.dumps(text)


@lru_cache(maxsize=1024)
def _origin(at: EpochKey, isolation: Isolation) -> bytes:
    return orjson.dumps({"branch": at.branch, "epoch": at.epoch, "isolation": isolation})[1:-1]

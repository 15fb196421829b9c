"""The bodies and headers of look-ups, put together from JSON that is there already."""

from __future__ import annotations

from functools import lru_cache

import orjson
import pyarrow as pa

from epochal.contracts.identity import EpochKey
from epochal.service.queries.state.lookups import BatchAnswer, PointAnswer
from epochal.wire.reading import Isolation

Headers = list[tuple[bytes, bytes]]

JSON = b"application/json"
EPOCH_HEADER = b"epochal-epoch"


def point_body(table: str, answer: PointAnswer, isolation: Isolation) -> bytes:
    """``{table, key, value | entries, instances, branch, epoch, isolation}``."""
    member = b"entries" if answer.is_list else b"value"
    what = (b'{"table":', _quoted(table), b',"key":', answer.key, b',"', member, b'":', answer.content)
    each = () if answer.instances is None else (b',"instances":', answer.instances)
    return b"".join((*what, *each, b",", _origin(answer.at, isolation), b"}"))


def batch_body(table: str, answer: BatchAnswer, isolation: Isolation) -> bytes:
    """``{table, branch, epoch, isolation, values}``."""
    values = b",".join(answer.values)
    return b"".join((b'{"table":', _quoted(table), b",", _origin(answer.at, isolation), b',"values":[', values, b"]}"))


def batch_stream(table: str, at: EpochKey, rows: pa.Table, isolation: Isolation) -> bytes:
    """An Arrow stream of the rows; its schema's metadata has what ``batch_body`` has beside the values."""
    origin = {"table": table, "branch": at.branch, "epoch": str(at.epoch), "isolation": isolation}
    said = rows.replace_schema_metadata(origin)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, said.schema) as stream:
        stream.write_table(said)
    return bytes(sink.getvalue())


def point_headers(answer: PointAnswer) -> Headers:
    """The tag is the value's; which epoch answered is a header, so that 304 can say it too."""
    return [
        (b"content-type", JSON),
        (b"etag", answer.etag.encode()),
        (b"cache-control", b"private, no-cache"),
        (EPOCH_HEADER, f"{answer.at.branch}/{answer.at.epoch}".encode()),
        (b"x-content-type-options", b"nosniff"),
    ]


def matches(if_none_match: str | None, etag: str) -> bool:
    """Whether the client has this value already (RFC 9110, weak comparison)."""
    if if_none_match is None:
        return False
    known = {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
    return "*" in known or etag.removeprefix("W/") in known


@lru_cache(maxsize=1024)
def _quoted(text: str) -> bytes:
    return orjson.dumps(text)


@lru_cache(maxsize=1024)
def _origin(at: EpochKey, isolation: Isolation) -> bytes:
    return orjson.dumps({"branch": at.branch, "epoch": at.epoch, "isolation": isolation})[1:-1]

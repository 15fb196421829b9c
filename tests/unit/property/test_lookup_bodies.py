"""The fast parser of batch look-ups returns what the parser of the model returns, or nothing."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from epochal.service.api.state import _plain
from epochal.wire.state import MOST_KEYS, LookupRequest

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.datetimes().map(datetime.isoformat)
)
VALUES = st.recursive(
    SCALARS, lambda deeper: st.lists(deeper, max_size=2) | st.dictionaries(st.text(), deeper, max_size=2)
)
PLAIN = {
    "isolation": st.sampled_from(["read_committed", "read_uncommitted"]),
    "epoch": st.integers(0, 2**63),
    "savepoint": st.just("before-upgrade"),
    "tag": st.just("audited"),
    "at": st.just("2026-01-01T00:00:00Z"),
    "min_epoch": st.integers(0, 9),
    "wait_seconds": st.floats(0, 60),
}
FIELDS = st.dictionaries(st.sampled_from([*PLAIN, "keys", "self", "more"]), VALUES, max_size=3)
KEYS = st.lists(st.dictionaries(st.text(), VALUES, max_size=3), max_size=3)
BODIES = (
    st.builds(lambda keys, fields: {"keys": keys} | fields, KEYS, FIELDS | st.fixed_dictionaries({}, optional=PLAIN))
    | VALUES
)


@given(BODIES.map(lambda body: json.dumps(body).encode()) | st.binary(max_size=20))
@example(b'{"keys": [], "keys": [{"a": 1}]}')
@example(b'{"keys": [{"a": 1, "a": 2}], "epoch": 1, "epoch": "x"}')
@example(b'{"keys": [{"a": NaN}], "epoch": Infinity}')
@example(b'{"keys": [{"a": "\\ud800"}]}')
@example(b'{"keys": [{"\xff": 1}]}')
@example(b'{"keys": [{}], "at": 12, "epoch": "7", "wait_seconds": true}')
@example(b'\xef\xbb\xbf{"keys": [{}]}')
@example(b'{"keys": [{"a": 123456789012345678901234567890}]} ')
@example(b"[" * 10_000)
def test_the_fast_parser_equals_the_model_or_declines(body: bytes) -> None:
    found = _plain(body)
    if found is not None:
        assert _written(found) == _written(LookupRequest.model_validate_json(body))


def test_ordinary_bodies_take_the_fast_path() -> None:
    assert _plain(b'{"keys": [{"id": 1}], "epoch": 3, "isolation": "read_committed"}') is not None


@pytest.mark.parametrize("body", [b"{}", b'{"keys": [1]}', b'{"keys": [{}], "more": 1}', b'{"keys": {}}', b"[]", b"1"])
def test_invalid_bodies_are_left_to_the_model(body: bytes) -> None:
    assert _plain(body) is None
    with pytest.raises(ValidationError):
        LookupRequest.model_validate_json(body)


def test_too_many_keys_are_left_to_the_model() -> None:
    body = json.dumps({"keys": [{"id": 1}] * (MOST_KEYS + 1)}).encode()
    assert _plain(body) is None


def _written(request: LookupRequest) -> tuple[Any, ...]:
    """Includes types, because 1, 1.0 and True are equal; a NaN equals itself here."""
    return request.isolation, repr(request)

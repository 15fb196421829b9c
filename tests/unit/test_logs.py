"""Log records as JSON."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from epochal import logs
from epochal.errors import OptionError
from epochal.logs import JsonFormatter, TextFormatter, about, log_format


class CapturedLog:
    def __init__(self, **always: Any) -> None:
        self._stream = io.StringIO()
        self.handler = logging.StreamHandler(self._stream)
        self.handler.setFormatter(JsonFormatter(always))
        self.log = logging.getLogger("epochal.tests.logs")
        self.log.propagate = False
        self.log.setLevel(logging.INFO)
        self.log.addHandler(self.handler)

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._stream.getvalue().splitlines()]


@pytest.fixture
def captured() -> Iterator[CapturedLog]:
    captured = CapturedLog(application="flights", attempt=3, execution=None)
    yield captured
    captured.log.removeHandler(captured.handler)


def test_a_record_is_one_line_with_its_context(captured: CapturedLog) -> None:
    with about(epoch=7, request="r-1"):
        with about(epoch=8):
            captured.log.warning("two\nlines of %s", "Zürich", extra={"decision": "launch", "unknown_field": 1})
        captured.log.info("within")
    captured.log.info("after")
    first, second, third = captured.lines
    assert first["message"] == "two\nlines of Zürich" and first["level"] == "warning"
    assert first["logger"] == "epochal.tests.logs" and first["time"].endswith("Z") and len(first["time"]) == 24
    assert (first["epoch"], first["request"], first["decision"]) == (8, "r-1", "launch")
    assert (first["application"], first["attempt"]) == ("flights", 3)
    assert "execution" not in first and "unknown_field" not in first
    assert second["epoch"] == 7 and "epoch" not in third and "decision" not in second


def test_a_traceback_is_part_of_its_line(captured: CapturedLog) -> None:
    try:
        raise ValueError("invalid")
    except ValueError:
        captured.log.exception("it failed")
    (line,) = captured.lines
    assert line["exception"].endswith("ValueError: invalid") and "Traceback" in line["exception"]
    assert line["message"] == "it failed"


FORGED = "x\r\n2026-01-01 00:00:00,000 WARNING epochal: admin has logged in\u2028\x1b[2J\u202egnihton"


def test_untrusted_text_cannot_forge_a_record() -> None:
    record = logging.LogRecord("epochal", logging.WARNING, "", 1, "no such path: %s", (FORGED,), None)
    first, *rest = TextFormatter().format(record).split("\n")
    assert first.endswith("no such path: x\\u000d") and all(line.startswith("    ") for line in rest)
    assert all(line.isprintable() for line in (first, *rest))

    line = JsonFormatter().format(record)
    assert line.isprintable() and json.loads(line)["message"] == f"no such path: {FORGED}"


def test_a_request_record_has_separate_fields() -> None:
    arguments = ("127.0.0.1:4711", "GET", "/v1/tokens?limit=1", "1.1", 200)
    record = logging.LogRecord("uvicorn.access", logging.INFO, "", 1, '%s - "%s %s HTTP/%s" %d', arguments, None)
    line = json.loads(JsonFormatter().format(record))
    assert (line["method"], line["path"], line["status"]) == ("GET", "/v1/tokens?limit=1", 200)
    assert line["client"] == "127.0.0.1:4711"


def test_the_format_is_text_or_json() -> None:
    assert log_format({}) == log_format({logs.FORMAT_VARIABLE: ""}) == "text"
    assert log_format({logs.FORMAT_VARIABLE: "json"}) == "json"
    with pytest.raises(OptionError, match="EPOCHAL_LOG_FORMAT is 'xml'"):
        log_format({logs.FORMAT_VARIABLE: "xml"})

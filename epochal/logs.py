"""Formats of log records: text for users, or JSON, one object per line, for log collectors.

The context of a record (application, execution, attempt, epoch, request) is known where work begins. :func:`about` adds
it to all records within a block, in this thread or task.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final, Literal, TextIO

from epochal.errors import OptionError
from epochal.secrets import redact
from epochal.visible import visible, visible_lines

LogFormat = Literal["text", "json"]
FORMAT_VARIABLE: Final = "EPOCHAL_LOG_FORMAT"
TEXT: Final = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
FIELDS: Final = (
    "application",
    "execution",
    "attempt",
    "epoch",
    "request",
    "operation",
    "decision",
    "reason",
    "driver",
    "client",
    "method",
    "path",
    "status",
)
"""Fields that a record can have besides its message: from :func:`about`, or from ``extra`` of a call."""

_ACCESS = "uvicorn.access"
_about: ContextVar[Mapping[str, Any]] = ContextVar("epochal_logs_about", default=MappingProxyType({}))


def log_format(environment: Mapping[str, str] = os.environ) -> LogFormat:
    """The format of ``EPOCHAL_LOG_FORMAT``; the default is text. Raises ``OptionError``."""
    found = environment.get(FORMAT_VARIABLE) or "text"
    if found not in ("text", "json"):
        raise OptionError(f"{FORMAT_VARIABLE} is {found!r}; it must be 'text' or 'json'.")
    return "json" if found == "json" else "text"


def configure(format: LogFormat, level: int, stream: TextIO = sys.stderr, **always: Any) -> None:
    """Configure the root logger with this format and stream only. ``always``: fields of every JSON record."""
    formatter = TextFormatter() if format == "text" else JsonFormatter(always)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    logging.basicConfig(level=level, handlers=[handler], force=True)


@contextmanager
def about(**fields: Any) -> Iterator[None]:
    """Add fields to the records of this block, in addition to the fields of enclosing blocks."""
    token = _about.set({**_about.get(), **fields})
    try:
        yield
    finally:
        _about.reset(token)


class TextFormatter(logging.Formatter):
    """Text records. Further lines of a record are indented, so that foreign text cannot imitate a record."""

    def __init__(self) -> None:
        super().__init__(TEXT)

    def format(self, record: logging.LogRecord) -> str:
        return visible_lines(redact(super().format(record))).replace("\n", "\n    ")


class JsonFormatter(logging.Formatter):
    """``time`` (UTC, milliseconds), ``level``, ``logger``, ``message``, ``exception`` (a traceback); :data:`FIELDS`."""

    def __init__(self, always: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._always = {name: value for name, value in (always or {}).items() if value is not None}

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage()),
            **self._always,
            **{name: value for name, value in _about.get().items() if value is not None},
        }
        said = vars(record)
        entry |= {name: said[name] for name in FIELDS if said.get(name) is not None}
        if record.name == _ACCESS:
            entry |= _access(record.args)
        if record.exc_info is not None and record.exc_info[0] is not None:
            entry["exception"] = redact("".join(traceback.format_exception(*record.exc_info)).rstrip())
        # ``dumps`` has escaped control characters already; the rest is escaped in the form of JSON.
        return visible(json.dumps(entry, ensure_ascii=False, default=str, separators=(",", ":")))


def _access(args: object) -> dict[str, Any]:
    """The fields of a record of uvicorn about a request."""
    if not isinstance(args, tuple) or len(args) != 5:
        return {}
    client, method, path, _, status = args
    return {"client": client, "method": method, "path": redact(str(path)), "status": status}

"""Logs of the service's processes: text for people, without routine entries; or JSON, with them."""

from __future__ import annotations

import logging

from epochal.logs import configure, log_format

_ACCESS = "uvicorn.access"


def configure_logs() -> bool:
    """Configure logging by ``EPOCHAL_LOG_FORMAT``. Returns ``True`` if requests are logged: see uvicorn's
    ``access_log``."""
    format = log_format()
    configure(format, logging.WARNING)
    if format == "text":
        return False
    for name in ("epochal", _ACCESS):
        logging.getLogger(name).setLevel(logging.INFO)
    logging.getLogger(_ACCESS).addFilter(_is_no_call_of_a_driver)
    return True


def _is_no_call_of_a_driver(record: logging.LogRecord) -> bool:
    """Exclude drivers' calls: each driver makes several per second, and their effects are logged elsewhere."""
    return not (isinstance(record.args, tuple) and str(record.args[2:3]).startswith("('/internal/"))

"""Logs of the service's processes: text for people, who are not to be disturbed by what goes well; or JSON, with it."""

from __future__ import annotations

import logging

from epochal.logs import configure, log_format

_ACCESS = "uvicorn.access"


def configure_logs() -> bool:
    """As ``EPOCHAL_LOG_FORMAT`` says. Whether requests are to be logged: see uvicorn's ``access_log``."""
    format = log_format()
    configure(format, logging.WARNING)
    if format == "text":
        return False
    for name in ("epochal", _ACCESS):
        logging.getLogger(name).setLevel(logging.INFO)
    logging.getLogger(_ACCESS).addFilter(_is_no_call_of_a_driver)
    return True


def _is_no_call_of_a_driver(record: logging.LogRecord) -> bool:
    """There are several a second of each driver, and what they change is logged where it happens."""
    return not (isinstance(record.args, tuple) and str(record.args[2:3]).startswith("('/internal/"))

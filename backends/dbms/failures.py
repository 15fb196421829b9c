"""Translation of errors of databases and their clients into Epochal's, in one place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import exc

from epochal.backends.dbms.address import DatabaseAddress
from epochal.errors import EpochalError, OutcomeUnknown, RowRefused, SinkError, SourceError, SourceUnavailable
from epochal.secrets import without_secrets

LONGEST = 400
_UNREACHABLE = ("08", "57P", "53300")
_REFUSED = ("22", "23", "44", "45", "P0001")
"""Data and integrity errors, a view's check option, and errors raised by triggers."""
_MYSQL_STATES = {"1644": "45000", "3819": "23000", "4025": "23000"}
_COLUMN = re.compile(
    r"Key \((?P<key>[^)=]+)\)=|COPY \S+, line \d+, column (?P<copy>[^:]+):|failed: (?P<sqlite>[\w., ]+)$"
    r"|olumn '(?P<mysql>\w+)'"
)
_BUSY = ("40", "55P03")
_FULL = "53100"


class Busy(SinkError):
    """Another transaction holds a lock that this one needs."""


@contextmanager
def translated(
    subject: str, doing: str, address: DatabaseAddress, problem: type[EpochalError] = SinkError
) -> Iterator[None]:
    """Translate the database's errors in the block into Epochal's, with the caller, the action, and the fix.

    ``problem`` is raised unless a more specific class fits; ``RowRefused`` and ``Busy`` are ``SinkError``s.
    """
    try:
        yield
    except EpochalError:
        raise
    except Exception as error:
        if not is_database_error(error):
            raise
        raise _translation(subject, doing, address, problem, error) from error


@contextmanager
def commit_outcome(subject: str, address: DatabaseAddress) -> Iterator[None]:
    """Translate errors of a COMMIT: without an answer, its outcome is unknown."""
    try:
        yield
    except Exception as error:
        if not is_database_error(error) or is_refusal(error) or state(error).startswith((*_BUSY, _FULL)):
            raise
        raise OutcomeUnknown(
            f"{subject}: {address.place} did not answer a COMMIT: {reason(error, address)}. The outcome is checked, "
            "then the transaction is repeated if necessary."
        ) from error


def is_database_error(error: BaseException) -> bool:
    return isinstance(error, exc.SQLAlchemyError) or type(error).__module__.startswith(
        ("psycopg", "pymysql", "sqlite3")
    )


def state(error: BaseException) -> str:
    """Return PostgreSQL's SQLSTATE, or an equivalent for errors of other drivers; empty when unknown."""
    original = _original(error)
    found = getattr(original, "sqlstate", None)
    if isinstance(found, str):
        return found
    if isinstance(error, exc.DBAPIError) and error.connection_invalidated:
        return "08006"
    name, text, module = type(original).__name__, str(original), type(original).__module__
    number = re.match(r"\((\d+),", text)
    if number is not None and number[1] in _MYSQL_STATES:
        return _MYSQL_STATES[number[1]]
    if name == "IntegrityError":
        return "23000"
    if name == "DataError":
        return "22000"
    if "database or disk is full" in text or (module.startswith("pymysql") and text.startswith(("(1021", "(1114"))):
        return _FULL
    if "database is locked" in text or "Lock wait timeout" in text or "Deadlock found" in text:
        return "55P03"
    lost = ("(2003", "(2006", "(2013", "(2014", "(1053", "(0,")
    if module.startswith("psycopg") and name in ("OperationalError", "ConnectionTimeout"):
        return _state_of_refusal(text)
    if module.startswith("pymysql") and (text.startswith(lost) or name == "InterfaceError"):
        return "08006"
    if module.startswith("pymysql") and text.startswith(("(1142", "(1044", "(1227")):
        return "42501"
    if module.startswith("pymysql") and text.startswith("(1045"):
        return "28000"
    return ""


def is_refusal(error: BaseException) -> bool:
    """Return whether the database refuses a row; it will refuse it on each attempt."""
    return state(error).startswith(_REFUSED)


def refusal(what: str, row: str, error: BaseException) -> RowRefused:
    """Return the error of a refused row. ``what`` begins the sentence; ``row``: the row and the reason, if known."""
    return RowRefused(
        f"{what}the database refuses {row.rstrip('.')} ({_particulars(error)}). Correct the row's cause or the "
        "constraint; until then no row of its epoch is visible, and the commit is retried."
    )


def _particulars(error: BaseException) -> str:
    """Return SQLSTATE, column and constraint."""
    original = _original(error)
    diagnosis = getattr(original, "diag", None)
    found = [f"SQLSTATE {state(error)}"]
    named = getattr(original, "sqlite_errorname", None)
    if named:
        found.append(named)
    column = getattr(diagnosis, "column_name", None)
    if column is None:
        texts = [getattr(diagnosis, name, None) for name in ("message_detail", "context")] if diagnosis else []
        matches = (_COLUMN.search(text) for text in [*texts, str(original)] if text)
        column = next((next(filter(None, match.groups())) for match in matches if match), None)
    if column is not None:
        found.append(f"column {column.strip()}")
    constraint = getattr(diagnosis, "constraint_name", None)
    if constraint:
        found.append(f"constraint {constraint}")
    return ", ".join(found)


def _state_of_refusal(text: str) -> str:
    """Derive a SQLSTATE from the server's text: libpq has no code for a connection that was never established."""
    if "authentication failed" in text or "no password supplied" in text or "role " in text:
        return "28000"
    return "3D000" if 'database "' in text and "does not exist" in text else "08006"


def reason(error: BaseException, address: DatabaseAddress) -> str:
    """Return the database's message in one line: message, detail (which holds the row) and context."""
    original = _original(error)
    lines = [line.strip() for line in str(original).splitlines() if line.strip()]
    diagnosis = getattr(original, "diag", None)
    if diagnosis is not None and diagnosis.message_primary:
        lines = [diagnosis.message_primary, diagnosis.message_detail or "", _short_context(diagnosis.context)]
    elif len(lines) > 1 and type(original).__module__.startswith("psycopg"):
        lines = lines[:1]
    text = ". ".join(line.rstrip(".") for line in lines if line) or type(original).__name__
    text = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
    return without_secrets(text, address.secrets)


def _translation(
    subject: str, doing: str, address: DatabaseAddress, problem: type[EpochalError], error: BaseException
) -> EpochalError:
    what = f"{subject} could not {doing} at {address.place}"
    said, code = reason(error, address), state(error)
    if is_refusal(error):
        return refusal(f"{what}: ", f"a row: {said}", error)
    if code.startswith(_BUSY):
        return Busy(f"{what}: another transaction holds a lock: {said}. The step is retried.")
    if code == _FULL:
        return problem(
            f"{what}: no space is left on the database's disk: {said}. Free some space; the step is retried."
        )
    if code.startswith(_UNREACHABLE):
        return (SourceUnavailable if problem is SourceError else problem)(
            f"{what}: the database cannot be reached: {said}. Start it, or correct the URL; the step is retried."
        )
    if code.startswith("42501"):
        return problem(f"{what}: {said}. Grant the user this privilege, or let an administrator run the statement.")
    if code.startswith("28"):
        return problem(f"{what}: {said}. Correct the user or its password (password=secret('env:NAME')).")
    if code.startswith("3D"):
        return problem(f"{what}: {said}. Create the database, or correct the URL.")
    return problem(f"{what}: {said}.")


def _original(error: BaseException) -> BaseException:
    original = error.orig if isinstance(error, exc.DBAPIError) else None
    return original if original is not None else error


def _short_context(context: str | None) -> str:
    """Return the position of the row: ``COPY t, line 3, column id: "x"``."""
    return (context or "").splitlines()[0] if context and context.startswith("COPY") else ""

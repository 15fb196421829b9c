"""Spark's complaints about a pipeline, in the pipeline's words: the place, what is wrong, and the fix."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final

from epochal.errors import EpochalError, PipelineError

STREAM: Final = "_epochal_stream"
"""The alias that a stream's rows have in plans while a pipeline is analysed; messages do not show it."""
_STREAM = re.compile(rf"`?{STREAM}`?\.")
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w+;?.*", re.DOTALL)
_CONDITION = re.compile(r"^\[[A-Z0-9_.]+\]\s*")


_OVER_ROWS = {
    "MISSING_GROUP_BY": (
        "an aggregate stands beside columns of single rows. Aggregate with key_by(..).aggregate(..), which keeps "
        "its values over all epochs, and join the rows with what it gives."
    ),
    "INVALID_WHERE_CONDITION": (
        "the condition holds an aggregate, a window function or a generator such as explode(), and where() looks at "
        "one row. Aggregate with key_by(..).aggregate(..), or generate rows in select(), and filter what they give."
    ),
    "WINDOW_FUNCTION_WITHOUT_OVER_CLAUSE": (
        "a window function such as row_number() needs rows that it is over, and a verb looks at one row. Use "
        "key_by(..).top(..) for ranks, and key_by(..).process(..) with state for what depends on earlier rows."
    ),
    "WINDOW_FUNCTION_NOT_ALLOWED_IN_CLAUSE": (
        "the condition holds a window function, and where() looks at one row. Use key_by(..).top(..) for the first "
        "rows of each key, and key_by(..).process(..) with state for what depends on earlier rows."
    ),
}
"""What Spark says of computations over several rows, which would lead to others that are refused as well."""


@contextmanager
def at(where: str) -> Iterator[None]:
    """Inside the block, messages begin with ``where``; what is not Epochal's own becomes a ``PipelineError``."""
    try:
        yield
    except EpochalError as error:
        message = error.message
        raise type(error)(message if message.startswith(where) else f"{where}: {message}") from error
    except Exception as error:
        raise PipelineError(f"{where}: {explained(error)}") from error


@cache
def _query_loggers() -> tuple[logging.Logger, ...]:
    from pyspark.logger import PySparkLogger

    # Through pyspark: a logger of this name that anybody else has made lacks the methods that it then calls.
    return tuple(map(PySparkLogger.getLogger, ("SQLQueryContextLogger", "DataFrameQueryContextLogger")))


@contextmanager
def without_query_log() -> Iterator[None]:
    """Spark's Python side logs each refused query with the JVM's whole stack; here the error itself says it all."""
    loggers = _query_loggers()
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


_FAILED = re.compile(r"SQLSTATE: (?:2[123]\w{3}|P0001)")
_NOT_OF_COLUMNS = re.compile(
    r"\[(?:MALFORMED|INVALID_JSON_RECORD|FAILED_READ_FILE|PATH_NOT_FOUND|FILE_NOT_EXIST)|epochal-failure: "
)
"""A source's record or file; and what Epochal has raised itself (``tasks/reporting.py``)."""
_CAUSE = re.compile(r"^(?:Caused by: |: )?(?:[a-z]\w*\.)+[A-Z][\w$]*(?:Exception|Error): (.+)$", re.MULTILINE)
_ANSI_ADVICE = re.compile(r'\s*If necessary set "?spark\.sql\.ansi\.enabled"? to "?false"?.*? this error\.?')
"""Epochal's sessions are ANSI, always."""


def computation_error(text: str) -> str | None:
    """Why a computation fails for a row, by Spark's error; ``None``: the error is of another kind.

    The SQL states of classes 21, 22 and 23 are of values (an overflow, a cast, a division by zero, an index, a
    duplicate key), and P0001 is of ``raise_error``. The same rows have the same values in every run.
    """
    if _FAILED.search(text) is None or _NOT_OF_COLUMNS.search(text) is not None:
        return None
    return first_cause(text)


def first_cause(text: str) -> str:
    """The first line that says something, without Spark's prefix, SQLSTATE and advice against ANSI."""
    causes = _CAUSE.findall(text)
    line = causes[0] if causes else next((line for line in text.splitlines() if line.strip()), text)
    return sentence(line)


def innermost_cause(text: str) -> str:
    causes = _CAUSE.findall(text)
    return sentence(causes[-1]) if causes else first_cause(text)


def sentence(line: str) -> str:
    line = _ANSI_ADVICE.sub("", re.sub(r"\s*SQLSTATE: \w+;?", "", line.strip()))
    return line if line.endswith((".", "!", "?")) else f"{line}."


def explained(error: Exception) -> str:
    """One or two sentences on ``error``; for a column that is not there, the candidates."""
    from pyspark.errors import AnalysisException, ParseException, PySparkException

    if isinstance(error, AnalysisException) and not isinstance(error, ParseException):
        condition = error.getCondition() or ""
        if condition in _OVER_ROWS:
            return _OVER_ROWS[condition]
        parameters = error.getMessageParameters() or {}
        if condition.startswith("UNRESOLVED_COLUMN"):
            proposal = _STREAM.sub("", parameters.get("proposal") or "")
            there = f"; near it are {proposal.replace('`', '')}" if proposal else ""
            return f"there is no column {parameters.get('objectName', '').replace('`', '') or 'of this name'}{there}."
    if isinstance(error, PySparkException):
        return tidy(str(error))
    return f"{type(error).__name__}: {error}"


def tidy(text: str) -> str:
    """Spark's message without its condition, SQL state and logical plan."""
    text = _STREAM.sub("", _CONDITION.sub("", _SQLSTATE.sub("", text.strip())))
    line = " ".join(text.split())
    return line if line.endswith((".", "!", "?")) else f"{line}."

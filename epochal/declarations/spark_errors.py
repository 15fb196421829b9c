"""Translation of Spark's errors about a pipeline: the place, the problem, and the fix."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final

from epochal.errors import EpochalError, PipelineError

STREAM: Final = "_epochal_stream"
"""The alias of the rows of a stream in plans during analysis. Messages do not show it."""
_STREAM = re.compile(rf"`?{STREAM}`?\.")
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w+;?.*", re.DOTALL)
_CONDITION = re.compile(r"^\[[A-Z0-9_.]+\]\s*")


_OVER_ROWS = {
    "MISSING_GROUP_BY": (
        "an aggregate is combined with columns of single rows. Aggregate with key_by(..).aggregate(..), which keeps "
        "its values over all epochs, and join the rows with its output."
    ),
    "INVALID_WHERE_CONDITION": (
        "the condition contains an aggregate, a window function or a generator such as explode(), but where() "
        "evaluates single rows. Use key_by(..).aggregate(..), or generate rows in select(), and filter their output."
    ),
    "WINDOW_FUNCTION_WITHOUT_OVER_CLAUSE": (
        "a window function such as row_number() needs several rows, but a verb evaluates single rows. Use "
        "key_by(..).top(..) for ranks, and key_by(..).process(..) with state for values that depend on earlier rows."
    ),
    "WINDOW_FUNCTION_NOT_ALLOWED_IN_CLAUSE": (
        "the condition contains a window function, but where() evaluates single rows. Use key_by(..).top(..) for the "
        "first rows of each key, and key_by(..).process(..) with state for values that depend on earlier rows."
    ),
}
"""Replacements for Spark's messages whose advice would lead to other computations that are refused."""


@contextmanager
def at(where: str) -> Iterator[None]:
    """Inside the block, messages begin with ``where``; errors of other software become a ``PipelineError``."""
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

    # Created by pyspark: other loggers of this name lack methods that pyspark calls.
    return tuple(map(PySparkLogger.getLogger, ("SQLQueryContextLogger", "DataFrameQueryContextLogger")))


@contextmanager
def without_query_log() -> Iterator[None]:
    """Disable pyspark's log of refused queries with the stack of the JVM; the error has the same information."""
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
"""Errors of records or files of a source, and errors of Epochal (``tasks/reporting.py``)."""
_CAUSE = re.compile(r"^(?:Caused by: |: )?(?:[a-z]\w*\.)+[A-Z][\w$]*(?:Exception|Error): (.+)$", re.MULTILINE)
_ANSI_ADVICE = re.compile(r'\s*If necessary set "?spark\.sql\.ansi\.enabled"? to "?false"?.*? this error\.?')
"""Advice that does not apply: Epochal's sessions are always in ANSI mode."""


def computation_error(text: str) -> str | None:
    """The cause of a computation that fails for a row; ``None`` if Spark's error is of another kind.

    SQL states of classes 21, 22 and 23 are errors of values (overflow, cast, division by zero, index, duplicate key),
    and P0001 is ``raise_error``. They recur, because the same rows have the same values in every run.
    """
    if _FAILED.search(text) is None or _NOT_OF_COLUMNS.search(text) is not None:
        return None
    return first_cause(text)


def first_cause(text: str) -> str:
    """The first cause of the error, without Spark's prefix, SQLSTATE and advice against ANSI mode."""
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
    """A short description of ``error``; for a missing column, with similar columns."""
    from pyspark.errors import AnalysisException, ParseException, PySparkException

    if isinstance(error, AnalysisException) and not isinstance(error, ParseException):
        condition = error.getCondition() or ""
        if condition in _OVER_ROWS:
            return _OVER_ROWS[condition]
        parameters = error.getMessageParameters() or {}
        if condition.startswith("UNRESOLVED_COLUMN"):
            proposal = _STREAM.sub("", parameters.get("proposal") or "")
            there = f"; similar columns: {proposal.replace('`', '')}" if proposal else ""
            return f"there is no column {parameters.get('objectName', '').replace('`', '') or 'of this name'}{there}."
    if isinstance(error, PySparkException):
        return tidy(str(error))
    return f"{type(error).__name__}: {error}"


def tidy(text: str) -> str:
    """Spark's message without condition, SQL state and logical plan."""
    text = _STREAM.sub("", _CONDITION.sub("", _SQLSTATE.sub("", text.strip())))
    line = " ".join(text.split())
    return line if line.endswith((".", "!", "?")) else f"{line}."

"""Spark's complaints about a pipeline, in the pipeline's words: the place, what is wrong, and the fix."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from epochal.errors import EpochalError, PipelineError

_SQLSTATE = re.compile(r"\s*SQLSTATE: \w+;?.*", re.DOTALL)
_CONDITION = re.compile(r"^\[[A-Z0-9_.]+\]\s*")


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


@contextmanager
def without_query_log() -> Iterator[None]:
    """Spark's Python side logs each refused query with the JVM's whole stack; here the error itself says it all."""
    from pyspark.logger import PySparkLogger

    # Through pyspark: a logger of this name that anybody else has made lacks the methods that it then calls.
    loggers = [PySparkLogger.getLogger(name) for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger")]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


def explained(error: Exception) -> str:
    """One or two sentences on ``error``; for a column that is not there, the candidates."""
    from pyspark.errors import AnalysisException, ParseException, PySparkException

    if isinstance(error, AnalysisException) and not isinstance(error, ParseException):
        condition = error.getCondition() or ""
        parameters = error.getMessageParameters() or {}
        if condition.startswith("UNRESOLVED_COLUMN"):
            proposal = parameters.get("proposal")
            there = f"; near it are {proposal.replace('`', '')}" if proposal else ""
            return f"there is no column {parameters.get('objectName', '').replace('`', '') or 'of this name'}{there}."
    if isinstance(error, PySparkException):
        return tidy(str(error))
    return f"{type(error).__name__}: {error}"


def tidy(text: str) -> str:
    """Spark's message without its condition, SQL state and logical plan."""
    text = _CONDITION.sub("", _SQLSTATE.sub("", text.strip()))
    line = " ".join(text.split())
    return line if line.endswith((".", "!", "?")) else f"{line}."

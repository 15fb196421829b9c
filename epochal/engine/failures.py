"""Exceptions of an epoch as the catalog's :class:`Failure`.

Errors of Epochal's tasks in executors are decoded from a line in the exception's text
(:mod:`epochal.tasks.reporting`). Errors of Spark are recognised by their error conditions, which are stable names
(``MALFORMED_RECORD_IN_PARSING``), not by their text, except for a full disk, which has no condition.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterator, Mapping

from py4j.protocol import Py4JNetworkError
from pyspark.errors import AnalysisException, PySparkException, PythonException
from pyspark.errors.exceptions.base import PySparkPicklingError
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from epochal.aggregates.failed_columns import failure
from epochal.contracts.catalog import Failure
from epochal.declarations.spark_errors import computation_error, first_cause, innermost_cause, sentence
from epochal.errors import (
    AuthorError,
    ComputationFailed,
    EpochAborted,
    EpochalError,
    MalformedRecord,
    PipelineError,
    SchemaError,
    SourceError,
    SparkLost,
    StorageFull,
    TransientAuthorError,
)
from epochal.operators.contract import OperatorPlan
from epochal.pipeline.graph import Graph, NodeId, OperatorNode, TransformNode
from epochal.state.type_names import quoted
from epochal.tasks.reporting import MARKER, TRACEBACK_TITLE, as_failure, author_traceback, translated

_MARKED = re.compile(re.escape(MARKER) + r"(\{[^\n]*\})")
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]+(?:\.[A-Z][A-Z0-9_]*)?)\]")
_READING = re.compile(r"(?:while reading file|Path does not exist:) (\S+?)\.?(?:\s|$)")
_OTHER_TYPE = re.compile(r"reading Parquet column \[(.+?)\]\. Expected Spark type (.+?), actual Parquet type (\w+)\.")
_SAME_NAME = re.compile(r'Found duplicate field\(s\) "?(.+?)"?: \[(.+?)\] in case-insensitive mode')
_FULL_DISK = ("No space left on device", "Disk quota exceeded")
_MALFORMED = ("MALFORMED_RECORD_IN_PARSING", "MALFORMED_CSV_RECORD", "INVALID_JSON_RECORD_TYPE")
_UNREADABLE = ("FAILED_READ_FILE", "PATH_NOT_FOUND", "FILE_NOT_EXIST", "FAILED_READ_FILE.FILE_NOT_EXIST")
_LONGEST_MESSAGE = 2_000
_OF_OPERATING_SYSTEM = frozenset(
    name for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, (OSError, MemoryError))
)
_OF_AUTHORS = frozenset({AuthorError.slug, TransientAuthorError.slug})


def failure_of(exception: BaseException) -> Failure:
    """The failure that the catalog and the API show for ``exception``.

    The type is the slug of one of Epochal's errors; ``traceback`` is set if the author's code raised. Never raises.
    """
    for error in _with_causes(exception):
        reported = _reported(str(error))
        if reported is not None:
            return reported
    if type(exception) is EpochAborted and exception.__cause__ is not None:
        return _of_abort(exception, failure_of(exception.__cause__))
    if isinstance(exception, EpochalError):
        return as_failure(exception)
    if isinstance(exception, OSError) and not isinstance(exception, ConnectionError):
        return as_failure(translated(exception))
    return _of_spark(exception)


def _reported(text: str) -> Failure | None:
    for line in _MARKED.findall(text):
        try:
            return Failure.model_validate_json(line)
        except ValueError:
            continue
    return None


def _of_abort(exception: EpochAborted, cause: Failure) -> Failure:
    """Failure of an aborted epoch, with the type of its cause."""
    failure = as_failure(exception).model_copy(update={"type": cause.type})
    if cause.type in _OF_AUTHORS:
        failure = failure.model_copy(update={"traceback": cause.traceback})
    return failure


def _of_spark(exception: BaseException) -> Failure:
    text = str(exception)
    conditions = set(_CONDITION.findall(text))
    stems = {condition.partition(".")[0] for condition in conditions}
    file = next(iter(_READING.findall(text)), None)
    full = next((line for line in text.splitlines() if any(sign in line for sign in _FULL_DISK)), None)
    if full is not None:
        return _failure(
            StorageFull,
            f"A disk that the epoch writes to is full: {sentence(full)} Free some space; the epoch is retried.",
        )
    if stems & set(_MALFORMED):
        return _failure(
            MalformedRecord,
            f"A record of {file or 'a source'} does not fit the declared schema: {innermost_cause(text)} "
            "Correct the file or the schema, or let the source drop such records.",
        )
    if "FAILED_READ_FILE.FILE_NOT_EXIST" in conditions or "PATH_NOT_FOUND" in stems:
        return _failure(
            SourceError,
            f"{file or 'A source file'} is missing. Restore it: a recorded slice is read again from the same files.",
        )
    mismatch = _OTHER_TYPE.search(text)
    if mismatch is not None:
        column, declared, found = mismatch.groups()
        return _failure(
            SchemaError,
            f"Column {column} of {file or 'a source file'} is {found} in the file; Spark cannot read it "
            f"as the declared type {declared}. Declare the type of the files, and cast in the pipeline.",
        )
    twice = _SAME_NAME.search(text)
    if twice is not None:
        return _failure(
            SchemaError,
            f"{file or 'A source file'} has columns whose names differ only by case ({twice[2]}): column {twice[1]} "
            "is ambiguous. Rename the columns in the file.",
        )
    if "FAILED_READ_FILE" in stems:
        return _failure(SourceError, f"{file or 'A source file'} cannot be read: {innermost_cause(text)}")
    if isinstance(exception, PythonException):
        return _of_python_function(text)
    if isinstance(exception, AnalysisException):
        return _failure(PipelineError, f"Spark refuses the pipeline: {first_cause(text)}")
    if isinstance(exception, PySparkPicklingError):
        return _failure(
            PipelineError, f"A function or object of the pipeline cannot be serialised: {first_cause(text)}"
        )
    if isinstance(exception, (Py4JNetworkError, ConnectionError)):
        return _failure(
            SparkLost,
            f"Spark's JVM does not answer (out of memory?): {first_cause(text)} See the driver's log; the "
            "next attempt starts a new JVM.",
        )
    if computation_error(text) is not None:
        return _failure(ComputationFailed, f"{first_cause(text)} Correct the expression or the rows.")
    if isinstance(exception, PySparkException) or conditions:
        return _failure(EpochAborted, first_cause(text))
    return _of_author_in_driver(exception)


def _of_python_function(text: str) -> Failure:
    """Failure of a Python function in a transform (a UDF); the text has the worker's traceback without Spark's
    frames."""
    start = text.rfind(TRACEBACK_TITLE)
    if start < 0:
        return _failure(AuthorError, f"A Python function of the pipeline raised an exception: {first_cause(text)}")
    traceback = text[start:].partition("\n\tat ")[0].rstrip()
    raised = traceback.splitlines()[-1].strip()
    message = f"A Python function of the pipeline raised {raised}"
    # Spark omits the exception's cause, so that any non-builtin exception may have a transient cause.
    name = raised.partition(":")[0]
    kind = TransientAuthorError if "." in name or name in _OF_OPERATING_SYSTEM else AuthorError
    return Failure(type=kind.slug, message=message[:_LONGEST_MESSAGE], traceback=traceback)


def _of_author_in_driver(exception: BaseException) -> Failure:
    """Failure for plain Python exceptions in the driver: errors of the author's functions or defects of Epochal."""
    return Failure(
        type=EpochAborted.slug,
        message=f"{type(exception).__name__}: {exception}"[:_LONGEST_MESSAGE],
        traceback=author_traceback(exception),
    )


def _with_causes(exception: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = exception
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _failure(kind: type[EpochalError], message: str) -> Failure:
    return Failure(type=kind.slug, message=message[:_LONGEST_MESSAGE])


def located(graph: Graph, frames: Mapping[NodeId, DataFrame], plans: Mapping[str, OperatorPlan]) -> EpochalError | None:
    """Find the verb or operator, and the column, in which a computation failed, if Spark's error names neither.

    Returns ``None`` if no column fails. Runs only after a failed epoch. ``frames``: existing frames of the graph's
    nodes over the epoch's slices. Nodes that read another operator's output are skipped, because its task would have to
    run again.
    """
    operators = {node.id for node in graph.operators}
    for node in graph.nodes:
        found: EpochalError | None = None
        match node:
            case TransformNode() if node.id in frames and not operators & graph.ancestors([node.id]):
                found = _of_verb(node.label, frames[node.id])
            case OperatorNode() if frames.keys() >= set(node.inputs) and not operators & graph.ancestors(node.inputs):
                found = plans[node.name].located([frames[id] for id in node.inputs])
        if found is not None:
            return found
    return None


def _of_verb(label: str, frame: DataFrame) -> ComputationFailed | None:
    """Error of a verb whose inputs compute without an error, so that a failing column is computed here."""
    found = failure(frame)
    if found is None:
        return None
    names = [] if failure(frame.select(F.lit(1))) is not None else frame.columns
    while len(names) > 1:
        half = names[: len(names) // 2]
        names = half if failure(frame.select(*map(quoted, half))) is not None else names[len(half) :]
    where = f"{label}, column {names[0]!r}" if names else label
    return ComputationFailed(f"{where}: {computation_error(found)}")

"""Checks for expressions whose value changes when an epoch is computed again. Inputs of operators must not have them.

An epoch or a task can be computed more than once (design decision 1) and must compute the same state. Spark reports
non-deterministic functions (``rand``, ``uuid``, user functions declared as such). Spark treats the clock as
deterministic within a query, so functions of the clock are listed here by name. For a function from DataFrame to
DataFrame, only the names in its plan are checked.
"""

from __future__ import annotations

import io
import re
from collections.abc import Collection, Iterator
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

from epochal.declarations.expressions import Expression, to_column, with_spark
from epochal.declarations.sql_text import next_token, tokens_of
from epochal.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CLOCK = frozenset({"current_timestamp", "now", "localtimestamp", "current_date", "curdate", "current_time"})
_CLOCK_WITHOUT_ARGUMENTS = frozenset({"unix_timestamp", "to_unix_timestamp"})
_BARE = frozenset({"current_timestamp", "localtimestamp", "current_date", "current_time"})
"""Functions that can be called without parentheses if no column has the name."""
CHANCE = frozenset(
    {
        "rand", "random", "randn", "randstr", "uniform", "uuid", "shuffle", "monotonically_increasing_id",
        "spark_partition_id", "input_file_name", "input_file_block_start", "input_file_block_length", "reflect",
        "java_method", "try_reflect",
    }
)  # fmt: skip
_MOMENT = re.compile(r"\b(?:date|timestamp(?:_ntz|_ltz)?|time)\s*$", re.IGNORECASE)
_MOMENTS = frozenset({"now", "today", "yesterday", "tomorrow"})
_CALLED = re.compile(rf"(?<![\w.`])({'|'.join(sorted(CLOCK | CHANCE))})\(", re.IGNORECASE)
_SAMPLE = re.compile(r"^[\s:+|-]*Sample\b", re.MULTILINE)
_REFUSED_BY_SPARK = "NON_DETERMINISTIC|NONDETERMINISTIC"


def check_expression(expression: Expression, frame: DataFrame) -> None:
    """Raises ``PipelineError`` with the fix if the value of ``expression`` can differ between runs."""
    columns = {name.casefold() for name in frame.columns}
    name = next(varying_names(expression, columns), None)
    if name is None and _is_chance(expression, frame):
        name = "a non-deterministic function"
    if name is not None:
        raise PipelineError(_message(str(expression), name))


def check_clock(expression: Expression, frame: DataFrame) -> None:
    """Like :func:`check_expression`, for an aggregate, where Spark itself refuses non-deterministic functions."""
    name = next(varying_names(expression, {name.casefold() for name in frame.columns}), None)
    if name is not None:
        raise PipelineError(_message(str(expression), name))


def check_function(function: Any, inputs: list[DataFrame]) -> None:
    """Like :func:`check_expression`, for a function over DataFrames, based on its plan."""
    spark = inputs[0].sparkSession
    with with_spark():
        frame = function(*(spark.createDataFrame([], input.schema) for input in inputs))
    plan = explained_plan(frame)
    called = _CALLED.search(plan)
    if called is not None or _SAMPLE.search(plan):
        raise PipelineError(_message("the function", f"{called[1].lower()}()" if called else "sample()"))


def explained_plan(frame: DataFrame) -> str:
    """The output of ``explain(extended=True)``, the only access to a plan in the DataFrame API."""
    shown = io.StringIO()
    with redirect_stdout(shown):
        frame.explain(extended=True)
    return shown.getvalue()


def varying_names(expression: Expression, columns: Collection[str] = ()) -> Iterator[str]:
    """The functions of clock and chance in an expression. ``columns``: the input columns, in lower case."""
    call = expression.call
    if call.target is None:
        name = call.name.lower()
        if name in CLOCK | CHANCE or (name in _CLOCK_WITHOUT_ARGUMENTS and not (call.arguments or call.named)):
            yield f"{call.name}()"
        if name == "expr" and call.arguments and isinstance(call.arguments[0], str):
            yield from _in_text(call.arguments[0], columns)
        if name == "call_function" and call.arguments and str(call.arguments[0]).lower() in CLOCK | CHANCE:
            yield f"{call.arguments[0]}()"
    else:
        yield from varying_names(call.target, columns)
    for argument in (*call.arguments, *call.named.values()):
        for inner in argument if isinstance(argument, (list, tuple)) else (argument,):
            if isinstance(inner, Expression):
                yield from varying_names(inner, columns)


def _in_text(text: str, columns: Collection[str]) -> Iterator[str]:
    tokens = tokens_of(text)
    for position, token in enumerate(tokens):
        name = token.strip("`").lower()
        following = next_token(tokens, position + 1)
        if following is not None and tokens[following] == "(":
            after = next_token(tokens, following + 1)
            empty = after is not None and tokens[after] == ")"
            if name in CLOCK | CHANCE or (name in _CLOCK_WITHOUT_ARGUMENTS and empty):
                yield f"{name}()"
        elif name in _BARE and name not in columns and not token.startswith(("'", '"')):
            yield name
        elif (
            token[:1] in "'\""
            and token[1:-1].strip().lower() in _MOMENTS
            and _MOMENT.search("".join(tokens[:position]))
        ):
            yield f"{token[1:-1]!r}"


def _is_chance(expression: Expression, frame: DataFrame) -> bool:
    """Detect non-determinism by an aggregation, which Spark refuses for non-deterministic expressions."""
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F

    try:
        frame.agg(F.count(to_column(expression)))
    except PySparkException as error:
        return re.search(_REFUSED_BY_SPARK, error.getCondition() or "") is not None
    return False


def _message(expression: str, name: str) -> str:
    place = "" if expression == name else f"{expression}: "
    return (
        f"{place}{name} returns another value when an epoch is recomputed, so that the state would differ. For a time, "
        "use epoch_time(), which is the same in each retry, or a column of the input. For random values, use a hash of "
        "a column (xxhash64(id)). Or compute the value after the last operator, before the sink."
    )

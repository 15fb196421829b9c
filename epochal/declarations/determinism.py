"""Expressions that give another value when an epoch is computed again: no operator's input may depend on them.

An epoch may be computed more than once (design decision 1), and a task of it as well; its state must come out the same.
What Spark itself calls non-deterministic (``rand``, ``uuid``, a user's function that says so of itself) Spark is asked
about; the clock is deterministic to Spark within one query, and known here by name. Of a function from DataFrame to
DataFrame only the names in its plan are seen.
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
"""Called without brackets, where no column has the name."""
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
    """Raises ``PipelineError`` with the fix when ``expression``, over ``frame``, may change from run to run."""
    columns = {name.casefold() for name in frame.columns}
    name = next(varying_names(expression, columns), None)
    if name is None and _is_chance(expression, frame):
        name = "a function that is not deterministic"
    if name is not None:
        raise PipelineError(_message(str(expression), name))


def check_clock(expression: Expression, frame: DataFrame) -> None:
    """As :func:`check_expression`, of an aggregate: what Spark calls non-deterministic it refuses there by itself."""
    name = next(varying_names(expression, {name.casefold() for name in frame.columns}), None)
    if name is not None:
        raise PipelineError(_message(str(expression), name))


def check_function(function: Any, inputs: list[DataFrame]) -> None:
    """As :func:`check_expression`, of a function over DataFrames; as far as its plan shows it."""
    spark = inputs[0].sparkSession
    with with_spark():
        frame = function(*(spark.createDataFrame([], input.schema) for input in inputs))
    plan = explained_plan(frame)
    called = _CALLED.search(plan)
    if called is not None or _SAMPLE.search(plan):
        raise PipelineError(_message("the function", f"{called[1].lower()}()" if called else "sample()"))


def explained_plan(frame: DataFrame) -> str:
    """What ``explain(extended=True)`` prints: the DataFrame API has no other way to a plan."""
    shown = io.StringIO()
    with redirect_stdout(shown):
        frame.explain(extended=True)
    return shown.getvalue()


def varying_names(expression: Expression, columns: Collection[str] = ()) -> Iterator[str]:
    """The functions of clock and chance in an expression; ``columns`` are those of the input, in small letters."""
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
    """Spark refuses to aggregate what is not deterministic: so it says what is."""
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F

    try:
        frame.agg(F.count(to_column(expression)))
    except PySparkException as error:
        return re.search(_REFUSED_BY_SPARK, error.getCondition() or "") is not None
    return False


def _message(what: str, name: str) -> str:
    return (
        f"{what} holds {name}: an epoch that is computed again would give an operator other rows, and its state would "
        "not come out the same. Take a time from epoch_time(), which each retry sees alike, or from a column of the "
        "input, and chance from a hash of one (xxhash64(id)); or compute it after the last operator, before the sink."
    )

"""T2 of ``process``: messages for exceptions of authors' code, and for values that do not fit output or state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from epochal.contracts.catalog import Failure
from epochal.declarations.author_classes import Context
from epochal.declarations.keyed import KeyedProcess
from epochal.declarations.state import ListState, MapState, ValueState, declared_states
from epochal.engine.failures import failure_of
from epochal.errors import AuthorError, PipelineError, SchemaError
from epochal.operators.process.work import ProcessWork
from epochal.state.table import Column

KEY = (Column(name="plane", type="string"),)
ROW = pa.schema([("plane", pa.string()), ("delay", pa.int32())])
OUTPUT = pa.schema([("plane", pa.string()), ("total", pa.int64())])


@pytest.fixture
def operator(make_operator: Any) -> Callable[..., Any]:
    def make(process: type[KeyedProcess]) -> Any:
        tables = tuple(state.table("operator", KEY) for state in declared_states(process).values())
        return make_operator(
            work=ProcessWork(process, tuple(ROW.names)), row=ROW, output=OUTPUT, key=KEY, tables=tables
        )

    return make


def rows(**delays: Sequence[int]) -> list[dict[str, Any]]:
    return [{"plane": plane, "delay": delay} for plane, of_plane in delays.items() for delay in of_plane]


def failure(operator: Any, input: list[dict[str, Any]], error: type[Exception]) -> Failure:
    with pytest.raises(error) as raised:
        operator.attempt(input)
    return failure_of(raised.value)


def test_an_authors_exception_shows_operator_key_and_the_authors_frames(operator: Any) -> None:
    class Broken(KeyedProcess):
        output = "plane string, total bigint"

        def process(self, key: Any, rows: Sequence[Any], ctx: Context) -> Iterable[Any]:
            yield key.plane, 1 // (rows[0].delay - 7)

    found = failure(operator(Broken), rows(a=[1], b=[7]), AuthorError)
    assert found.type == "author-error"
    assert found.step == "T2"
    assert found.message == (
        "Operator 'operator', key (plane='b'): the author's code raised ZeroDivisionError: "
        "integer division or modulo by zero"
    )
    assert found.traceback is not None
    assert "yield key.plane, 1 // (rows[0].delay - 7)" in found.traceback
    assert "epochal/engine" not in found.traceback
    assert found.traceback.endswith("ZeroDivisionError: integer division or modulo by zero")


def test_an_exception_of_an_authors_constructor_is_an_author_error(operator: Any) -> None:
    class Broken(KeyedProcess):
        output = "plane string, total bigint"

        def __init__(self) -> None:
            raise LookupError("no such file")

        def process(self, key: Any, rows: Sequence[Any], ctx: Context) -> None: ...

    found = failure(operator(Broken), [], AuthorError)
    assert "creating Broken" in found.message and "no such file" in found.message


def test_use_of_timers_without_on_timer_is_refused_with_the_key(operator: Any) -> None:
    class Wrong(KeyedProcess):
        output = "plane string, total bigint"

        def process(self, key: Any, rows: Sequence[Any], ctx: Context) -> None:
            getattr(ctx, "timer")(datetime(2020, 1, 1, tzinfo=UTC))  # noqa: B009  hidden from the check at declaration

    found = failure(operator(Wrong), rows(a=[1]), PipelineError)
    assert found.message.startswith(
        "Operator 'operator', key (plane='a'): ctx.timer() is only available in a KeyedProcess"
    )
    assert found.traceback is not None and 'getattr(ctx, "timer")' in found.traceback


YIELDED = {
    "arity": ([("a", 1, 2)], "a row of 3 values"),
    "type": ([("a", "x")], "'x' (str) for output column 'total'"),
    "fraction": ([("a", 1.5)], "1.5 (float) for output column 'total'"),
    "range": ([("a", 1 << 70)], "output column 'total'"),
    "missing": ([{"plane": "a"}], "lacks total"),
    "unknown": ([{"plane": "a", "total": 1, "when": 2}], "has when"),
    "scalar": ([3], "yielded 3, which is not an output row"),
    "text": ("abc", "must yield its output rows"),
    "tuple": (("a", 1), "must yield its output rows"),
    "number": (7, "must yield its output rows"),
}


@pytest.mark.parametrize(("yielded", "complaint"), YIELDED.values(), ids=YIELDED.keys())
def test_invalid_output_is_refused_with_the_declared_schema(operator: Any, yielded: Any, complaint: str) -> None:
    class Wrong(KeyedProcess):
        output = "plane string, total bigint"

        def process(self, key: Any, rows: Sequence[Any], ctx: Context) -> Any:
            return yielded

    found = failure(operator(Wrong), rows(a=[1]), SchemaError)
    assert found.type == "invalid-schema"
    assert complaint in found.message
    assert found.message.count("Operator 'operator'") == 1
    if "must yield" not in complaint:
        assert "Its output is declared as: plane string, total bigint." in found.message


STATE_MISUSE: dict[str, tuple[Callable[[Any], Any], str]] = {
    "set arity": (lambda p: p.value.set(1, 2, 3), "declared as (count int, word string)"),
    "set unknown name": (lambda p: p.value.set(count=1, what=2), "declared as (count int, word string)"),
    "set type": (lambda p: p.value.set("x", "y"), "'x' (str) for column 'count' at key (plane='a')"),
    "append type": (lambda p: p.list.append("x"), "'x' (str) for column 'element' at key (plane='a')"),
    "map value": (lambda p: p.map.put("k", "v"), "'v' (str) for column 'number' at key (plane='a')"),
    "map key": (lambda p: p.map.put(1, 1), "1 cannot be a key of this map, whose key is (word string)"),
    "map null key": (lambda p: p.map.get(None), "None cannot be a key of this map"),
}


@pytest.mark.parametrize(("misuse", "complaint"), STATE_MISUSE.values(), ids=STATE_MISUSE.keys())
def test_invalid_state_values_are_refused_by_name(operator: Any, misuse: Callable[[Any], Any], complaint: str) -> None:
    class Wrong(KeyedProcess):
        value = ValueState("count int, word string")
        list = ListState("element int")
        map = MapState(key="word string", value="number int")
        output = "plane string, total bigint"

        def process(self, key: Any, rows: Sequence[Any], ctx: Context) -> None:
            misuse(self)

    found = failure(operator(Wrong), rows(a=[1]), SchemaError)
    assert complaint in found.message
    assert "operator." in found.message
    assert found.message.count("Operator 'operator'") == 1


def test_the_sub_key_of_a_map_cannot_be_null(operator: Any) -> None:
    class Wrong(KeyedProcess):
        times = MapState(key="delay int, day date", value="times int")
        output = "plane string, total bigint"

        def process(self, key: Any, rows: Sequence[Any], ctx: Context) -> None:
            self.times.put((7, None), 1)

    found = failure(operator(Wrong), rows(a=[1]), SchemaError)
    assert "(7, None) cannot be a key of this map" in found.message and "'day' takes no nulls" in found.message


def test_messages_show_declared_columns_without_those_of_expiry(operator: Any) -> None:
    class Kept(KeyedProcess):
        kept = ValueState("delay int", ttl="1 day")
        output = "plane string, total bigint"

        def process(self, key: Any, rows: Sequence[Any], ctx: Context) -> None:
            self.kept.set("late")

    assert "It is declared as (delay int)" in failure(operator(Kept), rows(a=[1]), SchemaError).message

"""T2 of ``process`` with timers, compared with a model, with retries, restarts and changes of parallelism."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from epochal.contracts.conditions import BEGINNING, END, Due, microseconds
from epochal.declarations.author_classes import Context
from epochal.declarations.keyed import KeyedProcess
from epochal.declarations.state import ValueState, declared_states
from epochal.engine.failures import failure_of
from epochal.errors import AuthorError, PipelineError, SchemaError
from epochal.operators.process.stored_timers import timer_tables
from epochal.operators.process.timers import EVENT, PROCESSING, Timer
from epochal.operators.process.work import ProcessWork
from epochal.state.table import Column

KEY = (Column(name="plane", type="string"),)
ROW = pa.schema([("plane", pa.string()), ("at", pa.timestamp("us", "UTC")), ("commands", pa.string())])
OUTPUT = pa.schema([("plane", pa.string()), ("action", pa.string()), ("calls", pa.int64())])
_START = datetime(1970, 1, 1, tzinfo=UTC)


def time(number: int) -> datetime:
    return _START + timedelta(microseconds=number)


FIRST = time(1)


class Commanded(KeyedProcess):
    """Executes the commands in its rows: ``e5a`` sets a timer in event time at 5 named ``a``, ``-e5a`` deletes it.

    A timer named ``beat`` sets the next one 3 later, up to 20; ``back`` one that is 2 earlier, ``over`` both of the
    other domain; every call is counted in state.
    """

    calls = ValueState("calls bigint")
    output = "plane string, action string, calls bigint"

    def process(self, key: Any, rows: Sequence[Any], ctx: Context) -> Iterator[Any]:
        for row in rows:
            for command in row.commands.split():
                act(ctx, command)
        yield key.plane, " ".join(row.commands for row in rows), self.count()

    def on_timer(self, key: Any, at: datetime, ctx: Context) -> Iterator[Any]:
        domain, number = ctx.time_domain[0], microseconds(at)
        for command in commands_of_timer(domain, number, ctx.timer_name):
            act(ctx, command)
        yield key.plane, f"{domain}{number}{ctx.timer_name}", self.count()

    def count(self) -> int:
        self.calls.set((self.calls.get() or 0) + 1)
        return self.calls.get()


class Interleaved(Commanded):
    order_by = "at"


def commands_of_timer(domain: str, number: int, name: str) -> list[str]:
    if name == "beat" and number < 20:
        return [f"{domain}{number + 3}beat"]
    if name == "back" and number > 0:
        return [f"{domain}{number - 2}back"]
    if name == "over":
        other = "p" if domain == "e" else "e"
        return [f"{other}{number}x", f"{other}{number + 1}x", f"-{other}{number + 2}a"]
    return []


def act(ctx: Context, command: str) -> None:
    domain, number, name = parsed(command.removeprefix("-"))
    calls = {
        (EVENT, False): ctx.timer,
        (EVENT, True): ctx.delete_timer,
        (PROCESSING, False): ctx.processing_timer,
        (PROCESSING, True): ctx.delete_processing_timer,
    }
    calls[domain, command.startswith("-")](time(number), name)


def parsed(command: str) -> Timer:
    digits = command[1:].rstrip("abcdefghijklmnopqrstuvwxyz")
    return (EVENT if command[0] == "e" else PROCESSING), int(digits), command[1 + len(digits) :]


@dataclass
class Model:
    """A simple model: all timers of a key in a dict, with the first epoch in which they may fire."""

    timers: dict[str | None, dict[Timer, int]] = field(default_factory=dict)
    calls: dict[str | None, int] = field(default_factory=dict)
    epoch: int = 0

    def run(self, rows: list[dict[str, Any]], fire: int, epoch_time: int, interleaved: bool) -> dict[Any, list[Any]]:
        self.epoch += 1
        output: dict[Any, list[Any]] = {}
        for key in {*self.timers, *(row["plane"] for row in rows)}:
            mine = sorted((row for row in rows if row["plane"] == key), key=lambda row: row["at"])
            called = self._key(key, mine, (fire, epoch_time), interleaved)
            if called:
                output[key] = called
        return output

    def _key(self, key: Any, rows: list[dict[str, Any]], clocks: tuple[int, int], interleaved: bool) -> list[Any]:
        timers, output = self.timers.setdefault(key, {}), []
        last: list[int | None] = [None, None]

        def emit(action: str) -> None:
            self.calls[key] = self.calls.get(key, 0) + 1
            output.append((action, self.calls[key]))

        def act(command: str) -> None:
            timer = parsed(command.removeprefix("-"))
            fired = last[timer[0]]
            if command.startswith("-"):
                timers.pop(timer, None)
            elif timer[1] <= clocks[timer[0]] and fired is not None and timer[1] <= fired:
                timers[timer] = self.epoch + 1
            else:
                timers.setdefault(timer, self.epoch)

        def due(before: int | None = None) -> Timer | None:
            ready = [timer for timer, epoch in timers.items() if epoch <= self.epoch and timer[1] <= clocks[timer[0]]]
            first = min(ready, default=None)
            return first if first is None or before is None or (first[0] == EVENT and first[1] <= before) else None

        def fire(timer: Timer) -> None:
            del timers[timer]
            last[timer[0]] = timer[1]
            domain = "ep"[timer[0]]
            for command in commands_of_timer(domain, timer[1], timer[2]):
                act(command)
            emit(f"{domain}{timer[1]}{timer[2]}")

        while rows:
            if interleaved:
                first = microseconds(rows[0]["at"])
                if (timer := due(before=first)) is not None:
                    fire(timer)
                    continue
                count = sum(microseconds(row["at"]) == first for row in rows) if first <= clocks[0] else len(rows)
            else:
                count = len(rows)
            for row in rows[:count]:
                for command in row["commands"].split():
                    act(command)
            emit(" ".join(row["commands"] for row in rows[:count]))
            rows = rows[count:]
        while (timer := due()) is not None:
            fire(timer)
        return output

    def earliest(self) -> list[int]:
        waiting = [timer for timers in self.timers.values() for timer in timers]
        return [min((at for of, at, _ in waiting if of == domain), default=END) for domain in (EVENT, PROCESSING)]


@pytest.mark.parametrize("process", [Commanded, Interleaved])
@pytest.mark.parametrize("number", range(4))
@pytest.mark.alternating(2)
def test_timers_fire_once_and_in_order_for_any_division_into_epochs(
    process: type[Commanded], number: int, run_seed: int, make_operator: Any, tmp_path: Path
) -> None:
    choose, model = random.Random(run_seed * 10 + number), Model()
    kind = choose.choice(["heap", "lmdb"])
    operator = with_timers(make_operator, process, kind=kind, chunk_rows=choose.choice([1, 4, 1000]))
    fire, epoch_time = BEGINNING, 100
    for epoch in range(8):
        fire = choose.choice([fire, max(fire, 0) + choose.randrange(12)])
        epoch_time += choose.choice([0, 0, 3, 7])
        rows = [row_of(choose, fire, epoch_time) for _ in range(choose.choice([0, 0, 1, 6]))]
        operator.at(fire, epoch_time)
        expected = model.run(rows, fire, epoch_time, process is Interleaved)
        first, handles = operator.attempt(rows)
        if choose.random() < 0.5:
            second, handles = operator.attempt(rows)
            assert by_plane(second) == by_plane(first)
        assert by_plane(first) == expected, epoch
        # A deleted timer may still be waited for; a waiting timer is never missed.
        for due, waits, clock in zip(earliest(min_due(handles)), model.earliest(), (fire, epoch_time), strict=True):
            assert due <= max(waits, clock)
        operator.commit(handles)
        check_state(operator, model, fire, epoch_time)
        if choose.random() < 0.3:
            operator.parallelism = choose.choice([2, 4, 6])
            operator.backend = type(operator.backend)("operator", operator.store, str(tmp_path / f"moved-{epoch}"))


def test_timers_before_a_fired_timer_fire_in_the_next_epoch(make_operator: Any) -> None:
    operator = with_timers(make_operator, Commanded)
    operator.at(50, 100)
    assert actions(operator.run([command("e7a e30back e51a")])) == ["e7a e30back e51a", "e7a", "e30back"]
    assert operator.dues == [Due(event=50)]  # already reached: the loop opens an epoch immediately
    assert actions(operator.run([])) == ["e28back"]  # although no clock has advanced
    assert actions(operator.run([command("-e26back")])) == ["-e26back"]
    assert operator.dues == [Due(event=51)]
    operator.at(51, 100)
    assert actions(operator.run([])) == ["e51a"]
    assert operator.dues == []


def test_at_the_end_of_the_input_all_timers_fire_and_none_repeats_forever(make_operator: Any) -> None:
    class Beats(KeyedProcess):
        output = "plane string, action string, calls bigint"

        def process(self, key: Any, rows: Sequence[Any], ctx: Context) -> None:
            ctx.timer(time(100), "beat")

        def on_timer(self, key: Any, at: datetime, ctx: Context) -> Iterator[Any]:
            ctx.timer(at + timedelta(microseconds=100), "beat")
            yield key.plane, f"{microseconds(at)} of {ctx.watermark}", 0

    operator = with_timers(make_operator, Beats)
    operator.at(299, 100)
    assert [action.split()[0] for action in actions(operator.run([command("")]))] == ["100", "200"]
    operator.at(END, 100)
    assert actions(operator.run([])) == ["300 of 9999-12-31 23:59:59.999999+00:00"]
    assert actions(operator.run([])) == []
    assert operator.dues == []


@pytest.mark.parametrize("kind", ["heap", "lmdb"])
def test_the_last_epoch_drops_and_counts_timers_that_cannot_fire(make_operator: Any, kind: str) -> None:
    operator = with_timers(make_operator, Commanded, kind=kind)
    operator.at(10, 100)
    rows = [command("e12a e40beat p105a p110a p120a p130a"), {**command("p101a p200a p90back"), "plane": "b"}]
    assert [action for action, _ in by_plane(operator.run(rows))["b"]] == ["p101a p200a p90back", "p90back"]
    operator.draining = True
    operator.at(END, 105)
    # The timer at 120 is deleted, not dropped; a timer that is set again, or by a timer, is dropped when it is set.
    # The timer at 130 waits and is set again, that at 110 is deleted and set again: each counts once.
    last_commands = "-p120a p104a e50over -p999a p130a p140a -p140a -p110a p110a"
    last = [command(last_commands)]
    first, handles = operator.attempt(last)
    second, handles = operator.attempt(last)
    assert by_plane(second) == by_plane(first)
    operator.commit(handles)
    assert {plane: [action for action, _ in calls] for plane, calls in by_plane(first).items()} == {
        "a": [last_commands, "e12a", "e40beat", "e50over", "p105a"],
        "b": ["p88back", "p101a"],
    }
    # p104 and the two of e50over in processing time; p86back; then p110, p130 and p200, which waited.
    assert operator.dropped_timers == 3 + 1 + 3
    assert operator.dues == []
    check_state(operator, Model(), END, 105)


def test_output_of_many_timers_of_few_keys_is_emitted_in_parts(make_operator: Any) -> None:
    operator = with_timers(make_operator, Commanded, chunk_rows=3, parallelism=1, subtasks_of_task=1)
    operator.at(20, 100)
    (batches,) = operator.batches([command("e0beat e1beat e2beat")])
    sizes = [batch.num_rows for batch in operator.task()(iter(batches))]
    assert sum(sizes) == 1 + 21 + 1  # a call with a row, three series up to 20 that share no time, the handle
    assert max(sizes) <= 3


def test_the_context_has_watermark_and_epoch_time(make_operator: Any) -> None:
    class TimesInContext(KeyedProcess):
        output = "plane string, action string, calls bigint"

        def process(self, key: Any, rows: Sequence[Any], ctx: Context) -> Iterator[Any]:
            ctx.timer(rows[0].at.replace(tzinfo=None))
            yield key.plane, f"{ctx.watermark} {ctx.epoch_time}", 0

        def on_timer(self, key: Any, at: datetime, ctx: Context) -> Iterator[Any]:
            yield key.plane, f"{at} {ctx.watermark} {ctx.epoch_time}", 0

    operator = with_timers(make_operator, TimesInContext)
    operator.at(BEGINNING, 7)
    assert actions(operator.run([command("")])) == [f"None {time(7)}"]
    operator.at(10, 8)
    assert actions(operator.run([command("", at=time(9))])) == [
        f"None {time(8)}",
        *[f"{time(n)} {time(10)} {time(8)}" for n in (1, 9)],
    ]
    operator.at(12, 9)
    assert actions(operator.run([command("", at=time(13))])) == [f"{time(10)} {time(9)}"]


class NotATime(Commanded):
    def process(self, key: Any, rows: Sequence[Any], ctx: Context) -> None:
        ctx.timer(5)  # type: ignore[arg-type]


class NotAName(Commanded):
    def process(self, key: Any, rows: Sequence[Any], ctx: Context) -> None:
        ctx.delete_processing_timer(time(5), 5)  # type: ignore[arg-type]


class NoTimer(Commanded):
    def process(self, key: Any, rows: Sequence[Any], ctx: Context) -> None:
        str(ctx.timer_name)


class Failing(Commanded):
    def on_timer(self, key: Any, at: datetime, ctx: Context) -> None:
        raise KeyError(at)


@pytest.mark.parametrize(
    ("process", "event_time", "error", "message"),
    [
        (NotATime, "at", SchemaError, r"ctx.timer\(..\) takes a datetime.datetime, not 5"),
        (NotAName, "at", SchemaError, "the name of a timer must be a str, not 5"),
        (NoTimer, "at", PipelineError, "available only in on_timer"),
        (Commanded, None, PipelineError, r"uses event time, but its input has none. Call with_watermark\(..\)"),
        (Failing, "at", AuthorError, "the author's code raised KeyError"),
    ],
)
def test_wrong_use_of_timers_is_reported_with_the_key(
    process: type[KeyedProcess], event_time: str | None, error: type[Exception], message: str, make_operator: Any
) -> None:
    operator = with_timers(make_operator, process, event_time)
    operator.at(10, 10)
    with pytest.raises(error, match=message) as raised:
        operator.attempt([command("e5a")])
    failure = failure_of(raised.value)
    assert "key (plane='a')" in failure.message and failure.message.count("Operator 'operator'") == 1
    assert failure.traceback is not None and "test_process_timers.py" in failure.traceback


def command(commands: str, at: datetime = FIRST) -> dict[str, Any]:
    return {"plane": "a", "at": at, "commands": commands}


def actions(output: list[dict[str, Any]]) -> list[str]:
    return [row["action"] for row in output]


def row_of(choose: random.Random, fire: int, epoch_time: int) -> dict[str, Any]:
    def command() -> str:
        domain = choose.choice("ep")
        clock = max(fire, 0) if domain == "e" else epoch_time
        number = max(0, clock + choose.randrange(-6, 9))
        return f"{choose.choice(['', '', '', '-'])}{domain}{number}{choose.choice(['', 'a', 'beat', 'back', 'over'])}"

    commands = " ".join(command() for _ in range(choose.randrange(4)))
    # Each row has another time, so that their order is defined.
    return {"plane": choose.choice([None, "a", "b", "c"]), "at": time(choose.randrange(10**6)), "commands": commands}


def check_state(operator: Any, model: Model, fire: int, epoch_time: int) -> None:
    """A snapshot contains only waiting timers: fired timers expire, without a delete."""
    found = set()
    for table in operator.tables[1:]:
        domain, clock = (EVENT, fire) if table.id.endswith("_event_timers") else (PROCESSING, epoch_time)
        for due, plane, name, at in operator.state(table):
            if microseconds(due) > clock:
                found.add((plane, (domain, microseconds(at), name)))
    assert found == {(plane, timer) for plane, timers in model.timers.items() for timer in timers}


def by_plane(output: list[dict[str, Any]]) -> dict[Any, list[Any]]:
    found: dict[Any, list[Any]] = {}
    for row in output:
        found.setdefault(row["plane"], []).append((row["action"], row["calls"]))
    return found


def min_due(handles: Sequence[Any]) -> Due:
    due = Due()
    for handle in handles:
        due = due if handle.due is None else due.earliest(handle.due)
    return due


def earliest(due: Due) -> list[int]:
    return [END if each is None else each for each in (due.event, due.processing)]


def with_timers(make_operator: Any, process: type[KeyedProcess], event_time: str | None = "at", **more: Any) -> Any:
    chunk_rows = more.pop("chunk_rows", 1000)
    work = ProcessWork(process, tuple(ROW.names), event_time, chunk_rows)
    tables = tuple(state.table("operator", KEY) for state in declared_states(process).values())
    tables += timer_tables("operator", KEY, event_time is not None)
    output = more.pop("output", OUTPUT)
    return make_operator(work=work, key=KEY, row=ROW, output=output, tables=tables, order_by=("at",), **more)

"""Applications of random programs, at any parallelism, with any epochs and failures of drivers, equal the class run
sequentially. Store, state, tasks and recovery are real; Spark is absent."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from epochal.connectors import console, generator
from epochal.declarations.names import name_of_class
from epochal.pipeline.pipeline import Pipeline
from epochal.programs.execution import Failed
from epochal.programs.state import OVERFLOWED
from epochal.state.table import StateScope
from tests.kit.lives import Disruption, Life, Row, Step
from tests.unit.property.random_programs import random_epochs, random_program
from tests.unit.property.test_programs_equal_sequential import loaded, sequential_answer

CALLS = pa.schema([("k", pa.int64()), ("x", pa.int64()), ("at", pa.int64())])
DISRUPTIONS: tuple[Disruption, ...] = ("nothing", "nothing", "abort", "die", "die decided", "restart")


def application(program: type, entries: int) -> Pipeline:
    """Each entry has its own source, and a sink for its results."""
    pipeline = Pipeline("random")
    running = pipeline.program(program)
    columns = dict.fromkeys(CALLS.names, "id")
    for number in range(entries):
        calls = pipeline.read(f"e{number}", generator.source(columns))
        running.feed(f"e{number}", calls, order_by="at", keep=("at", "k"))
    for number in range(entries):
        running.results(f"e{number}").write(f"r{number}", console.sink())
    return pipeline


def answers(life: Life, entries: int) -> dict[int, Any]:
    """Answers by the time of their call."""
    rows = [row for number in range(entries) for row in life.all_of(f"r{number}")]
    assert len(rows) == len({row["at"] for row in rows})
    return {row["at"]: (row["k"], row["error"] or row["value"]) for row in rows}


def summed(rows: Iterable[tuple[int, ...]], zero_is_none: bool) -> dict[tuple[int, ...], int]:
    """Sums over all instances of partial state. If zero is none, no instance stores a zero."""
    sums: dict[tuple[int, ...], int] = {}
    for _, *key, value in rows:
        assert value or not zero_is_none, key
        sums[tuple(key)] = sums.get(tuple(key), 0) + value
    return {key: value for key, value in sums.items() if value or not zero_is_none}


def check(folder: Path, seed: int) -> None:
    chance = random.Random(seed)
    text = random_program(chance)
    entries = text.count("@entry\n")
    epochs = random_epochs(chance, entries)
    program = loaded(text, folder)
    sequential, expected = program(), dict[int, Any]()
    with Life(
        application(program, entries),
        {f"e{number}": CALLS for number in range(entries)},
        parallelism=chance.randint(1, 4),
    ) as life:
        for epoch in epochs:
            rows: dict[str, list[Row]] = {}
            for call in epoch:
                at = len(expected)
                answer = sequential_answer(sequential, call)
                shown = f"{answer.kind}: {answer.message}" if isinstance(answer, Failed) else answer
                expected[at] = (call.arguments["k"], shown)
                rows.setdefault(call.entry, []).append({**call.arguments, "at": at})
            for calls in rows.values():
                chance.shuffle(calls)
            # Another number of subtasks than the application has.
            own = {name_of_class(program.__name__): chance.randint(1, 4)} if seed % 2 else {}
            life.epoch(Step(chance.choice(DISRUPTIONS), chance.randint(1, 4), parallelisms=own), **rows)
        life.settle()
        life.finish()
        assert answers(life, entries) == expected, (seed, text)
        for table in life.program.participants.tables if expected else ():
            columns = [column.name for column in (*table.full_key, *table.value)]
            found = sorted(tuple(row[each] for each in columns) for row in life.state(table.id))
            if table.scope is StateScope.PARTIAL:
                state = getattr(sequential, table.id)
                assert dict(state.rows()) == summed(found, state.zero_is_none), (seed, text)
                continue
            expected_rows = getattr(sequential, table.id).rows()
            assert found == [(*key, None if value is OVERFLOWED else value) for key, value in expected_rows], (
                seed,
                text,
            )


def test_random_applications_equal_sequential_execution(tmp_path: Path) -> None:
    for seed in range(12):
        check(tmp_path, seed)


@pytest.mark.long
@pytest.mark.parametrize("first", range(1000, 1400, 100))
def test_many_random_applications_equal_sequential_execution(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 100):
        check(tmp_path, seed)

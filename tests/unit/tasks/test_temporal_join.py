"""T2 of the temporal join, against nested loops over all rows and versions."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest

from epochal.contracts.conditions import END, microseconds
from epochal.operators.joins.version_plan import TemporalJoinOperator
from epochal.tasks.row_digests import row_digests
from tests.unit.tasks.joined import TIMESTAMP, make_join

LEFT = pa.schema([("id", pa.string()), ("ts", TIMESTAMP), ("a", pa.float64())])
RIGHT = pa.schema([("rate", pa.int32()), ("id", pa.string()), ("ts", TIMESTAMP), ("_deleted", pa.bool_())])
KEYS = (None, "x", "y", "z")


def micros(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(microseconds(value) if isinstance(value, datetime) else value for value in row.values())


def by_loops(how: str, left: list[dict[str, Any]], right: list[dict[str, Any]]) -> Counter[Any]:
    """The version with the greatest digest of each key and time."""
    found: Counter[Any] = Counter()
    for row in left:
        before = [v for v in right if row["id"] is not None and v["id"] == row["id"] and v["ts"] <= row["ts"]]
        newest = max(before, key=lambda version: (version["ts"], digest(version)), default=None)
        if newest is None or newest["_deleted"]:
            if how == "left":
                found[(row["id"], row["ts"], row["a"], None)] += 1
        else:
            found[(row["id"], row["ts"], row["a"], newest["rate"])] += 1
    return found


def digest(version: dict[str, Any]) -> bytes:
    schema = pa.schema([field for field in RIGHT if field.name != "id"])
    (found,) = row_digests(pa.Table.from_pylist([version], RIGHT), schema).to_pylist()
    assert isinstance(found, bytes)
    return found


@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("number", range(4))
@pytest.mark.alternating(3)
def test_output_equals_nested_loops_for_any_division_into_epochs(
    make_operator: Any, how: str, number: int, run_seed: int
) -> None:
    choose = random.Random(f"{run_seed} {how} {number}")
    declared = TemporalJoinOperator("rated", ("id",), how, "ts", "ts", True, True)  # type: ignore[arg-type]
    join = make_join(make_operator, declared, LEFT, RIGHT, choose.choice(["heap", "lmdb"]), parallelism=2)
    join.work = replace(join.work, output_rows=choose.choice([1, 3, 1 << 16]))  # type: ignore[type-var]
    every_left, every_right, found, fire = [], [], Counter(), -6
    for _ in range(7):
        left = [
            {"id": choose.choice(KEYS), "ts": fire + choose.randrange(4), "a": choose.choice([None, 1.5])}
            for _ in range(choose.randrange(12))
        ]
        right = [(choose.choice(KEYS), fire + choose.randrange(4)) for _ in range(choose.randrange(5))]
        versions = [
            {"rate": choose.randrange(3), "id": key, "ts": time, "_deleted": choose.choice([None, False, True])}
            for key, time in right
        ]
        late, fire = fire, fire + choose.randrange(3)
        out = join.take(left, versions, fire)
        every_left += left
        every_right += versions
        found.update(map(micros, out))
        assert all(late <= microseconds(row["ts"]) < fire or row["id"] is None for row in out)
        assert all(at > fire for at in join.waits_for)
        _check_versions(join, every_right, fire)
    found.update(map(micros, join.take([], [], END)))
    assert found == by_loops(how, every_left, every_right)
    assert join.waits_for == [] and join.take([], []) == []


def _check_versions(join: Any, every: list[dict[str, Any]], fire: int) -> None:
    """State has the versions at or after the watermark and, for each key, the newest before it, unless it is a
    deletion."""
    expected = set()
    for key in KEYS[1:]:
        versions = [version for version in every if version["id"] == key]
        passed = [version for version in versions if version["ts"] < fire]
        newest = max(passed, key=lambda version: (version["ts"], digest(version)), default=None)
        expected |= {(key, version["ts"]) for version in versions if version["ts"] >= fire}
        if newest is not None and not newest["_deleted"]:
            expected.add((key, newest["ts"]))
    stored = join.state(join.tables[1])
    assert {(key, microseconds(time)) for key, time in stored} == expected


def test_the_choice_among_versions_of_one_time_is_independent_of_order(make_operator: Any) -> None:
    declared = TemporalJoinOperator("rated", ("id",), "inner", "ts", "ts", False, True)
    schema = pa.schema([field for field in RIGHT if field.name != "_deleted"])
    outputs = []
    versions = [{"rate": rate, "id": "x", "ts": 5} for rate in range(4)]
    for first in (versions, versions[::-1]):
        for cut in (0, 2, 4):
            join = make_join(make_operator, declared, LEFT, schema)
            join.take([{"id": "x", "ts": 6, "a": None}], first[:cut], 4)
            outputs += [row["rate"] for row in join.take([], first[cut:], 5) + join.take([], [], END)]
    assert len(outputs) == 6 and len(set(outputs)) == 1


@pytest.mark.parametrize("rate", range(4))
def test_a_deletion_competes_with_other_versions_of_its_time(make_operator: Any, rate: int) -> None:
    """In any division into epochs: a version exactly at the watermark may still arrive."""
    declared = TemporalJoinOperator("rated", ("id",), "left", "ts", "ts", True, True)
    versions = [{"rate": rate, "id": "x", "ts": 5, "_deleted": deleted} for deleted in (True, False)]
    rates = set()
    for first, second in ((versions, []), (versions[:1], versions[1:]), (versions[1:], versions[:1])):
        join = make_join(make_operator, declared, LEFT, RIGHT)
        join.take([], first, 5)
        join.take([], second, 5)
        (row,) = join.take([{"id": "x", "ts": 6, "a": None}], [], END)
        rates.add(row["rate"])
    assert len(rates) == 1


def test_a_row_waits_until_the_watermark_has_passed_it(make_operator: Any) -> None:
    """A version exactly at the watermark may still arrive."""
    declared = TemporalJoinOperator("rated", ("id",), "left", "ts", "ts", True, True)
    join = make_join(make_operator, declared, LEFT, RIGHT)
    assert join.take([{"id": "x", "ts": 5, "a": None}], [], 5) == [] and join.waits_for == [6]
    assert join.take([], [{"rate": 9, "id": "x", "ts": 5, "_deleted": False}], 5) == []
    (row,) = join.take([], [], 6)
    assert row["rate"] == 9 and list(row) == ["id", "ts", "a", "rate"] and join.waits_for == []

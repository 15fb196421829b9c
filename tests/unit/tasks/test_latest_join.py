"""T2 of the join with the newest versions at the time of processing."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from epochal.errors import PipelineError
from epochal.operators.joins.version_plan import LatestJoinOperator
from tests.unit.tasks.joined import make_join, planned

LEFT = pa.schema([("id", pa.string()), ("a", pa.int32())])
RIGHT = pa.schema([("id", pa.string()), ("since", pa.float64()), ("rate", pa.int32()), ("_deleted", pa.bool_())])
KEYS = (None, "x", "y", "z")


def operator(how: str, order_by: str = "since") -> LatestJoinOperator:
    return LatestJoinOperator("now", ("id",), how, order_by, True, None, True)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("kind", ["heap", "lmdb"])
def test_versions_of_an_epoch_apply_to_its_rows(make_operator: Any, how: str, kind: str, run_seed: int) -> None:
    choose = random.Random(run_seed)
    join = make_join(make_operator, operator(how), LEFT, RIGHT, kind)
    newest: dict[str, tuple[float, int, bool]] = {}
    for _ in range(6):
        versions = [
            (choose.choice(KEYS), choose.randrange(20), choose.random() < 0.2) for _ in range(choose.randrange(5))
        ]
        rows = [(choose.choice(KEYS), number) for number in range(8)]
        out = join.take(
            [{"id": key, "a": a} for key, a in rows],
            [{"id": key, "since": None if at == 0 else at, "rate": at, "_deleted": d} for key, at, d in versions],
        )
        for key, at, is_deleted in versions:
            if key is not None and (key not in newest or at > newest[key][0]):
                newest[key] = (at, at, is_deleted)
            elif key is not None and at == newest[key][0] and is_deleted != newest[key][2]:
                # The digest decides between equally new versions; the state shows the result.
                newest[key] = (at, at, _deleted_in_state(join, key))
        expected = []
        for key, a in rows:
            at, rate, is_deleted = newest.get(str(key), (0, 0, True))
            if not is_deleted or how == "left":
                expected.append({"id": key, "a": a, "rate": None if is_deleted else rate})
        assert sorted(out, key=str) == sorted(expected, key=str)
        assert {key for (key,) in join.state(join.tables[0])} == set(newest)


def _deleted_in_state(join: Any, key: str) -> bool:
    deleted: bool = join.state(join.tables[0])[(key,)][2]
    return deleted


def test_the_choice_among_equally_new_versions_is_independent_of_order(make_operator: Any) -> None:
    rates = []
    versions = [{"id": "x", "since": 5.0, "rate": rate, "_deleted": False} for rate in range(4)]
    for ordered in (versions, versions[::-1]):
        for cut in (0, 2, 4):
            join = make_join(make_operator, operator("inner"), LEFT, RIGHT)
            join.take([], ordered[:cut])
            rates += [row["rate"] for row in join.take([{"id": "x", "a": 1}], ordered[cut:])]
    assert len(rates) == 6 and len(set(rates)) == 1


def test_invalid_order_of_versions_is_refused() -> None:
    nested = pa.schema([*RIGHT, pa.field("many", pa.list_(pa.int32()))])
    with pytest.raises(PipelineError, match="cannot be sorted"):
        planned(operator("inner", "many"), LEFT, nested)
    with pytest.raises(PipelineError, match="is not a column of the versions"):
        planned(operator("inner", "id"), LEFT, RIGHT)

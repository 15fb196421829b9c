"""The definition of every operator: the same pipeline continues its state, other rows in front of it do not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pyspark.sql import SparkSession

from epochal.contracts.acceptance import Acceptance
from epochal.pipeline.analysis import analyse
from epochal.state.evolution import compare
from epochal.state.table import StateTable
from tests.operators.every_operator import CASES, Case


def tables(case: Case, spark: SparkSession) -> tuple[StateTable, ...]:
    found = analyse(case.pipeline().graph(), spark).tables
    return tuple(StateTable.model_validate_json(table.model_dump_json()) for table in found)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_operator_notices_other_rows(case: Case, spark: SparkSession) -> None:
    before = tables(case, spark)
    again = compare(before, tables(case, spark))
    assert {change.verdict for change in again} == {"same"}
    assert not any(change.notes or change.problems for change in again)
    filtered = tables(replace(case, build=lambda rows: case.build(rows.where("number > 5"))), spark)
    changes = compare(before, filtered)
    assert {each.what for change in changes for each in change.changed} & {"filter", "input", "argument"}
    assert any(change.problems for change in changes)
    if not any(table.changes_of for table in before):
        accepted = Acceptance(changed=tuple({table.operator for table in before}))
        assert not any(change.problems for change in compare(before, filtered, acceptance=accepted))

"""Guarantees of every operator: a retried epoch, a restarted attempt, another parallelism and another division into
epochs give the same state and output. A changed input changes the definition of the state: the same pipeline continues
the state, a pipeline with other input rows does not.

Each run tests some kinds of operator on Spark, selected by the seed. The tests of all kinds and their variants are
marked long; tests/property and tests/unit/tasks test all of them without Spark in every run.
"""

from __future__ import annotations

import inspect
import logging
import random
import re
from collections import Counter
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from epochal import faults, operators
from epochal.contracts.configuration import Acceptance, Configuration
from epochal.errors import EpochAborted
from epochal.faults import Fault
from epochal.operators.contract import Operator
from epochal.operators.distinct.plan import DistinctOperator, DistinctPlan
from epochal.operators.distinct.work import DistinctWork
from epochal.operators.process.partial_plan import MergeAnswersOperator
from epochal.operators.windows.plan import WindowedAggregate, WindowedOperator
from epochal.pipeline.analysis import analyse
from epochal.state.evolution import compare
from epochal.state.table import StateScope, StateTable
from epochal.testing import Harness
from tests.kit.slot_named import MACHINES, placed_lmdb
from tests.spark.operators.every_operator import CASES, Case, Row, some_rows

PAGE = Path(__file__).parents[3] / "docs/architecture.md"
TESTED_ELSEWHERE = {MergeAnswersOperator}  # with process_partial
SHARED = {WindowedOperator, WindowedAggregate}


SAMPLE = 3


@pytest.mark.claim("Thesis, 4.2.1", "SDG, table 1, execution")
def test_retry_restart_rescale_and_cuts_give_the_same_results(
    spark: SparkSession, run_seed: int, tmp_path: Path
) -> None:
    kinds = [case for case in CASES if not case.is_variant]
    for case in random.Random(run_seed).sample(kinds, SAMPLE):
        try:
            check(case, spark, run_seed, tmp_path / case.name)
        except Exception as error:
            error.add_note(f"The operator is {case.name!r}; the seed of the run is {run_seed}.")
            raise


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_retry_restart_rescale_and_cuts_of_every_operator(
    case: Case, spark: SparkSession, run_seed: int, tmp_path: Path
) -> None:
    check(case, spark, run_seed, tmp_path)


def test_placed_subtasks_give_the_same_results(
    spark: SparkSession, run_seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for case in random.Random(run_seed).sample([case for case in CASES if not case.is_variant], SAMPLE):
        check_placed(case, spark, run_seed, tmp_path / case.name, caplog)


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_placed_subtasks_of_every_operator_give_the_same_results(
    case: Case, spark: SparkSession, run_seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    check_placed(case, spark, run_seed, tmp_path, caplog)


def test_operators_with_numbers_of_subtasks_of_their_own_give_the_same_results(
    spark: SparkSession, run_seed: int, tmp_path: Path
) -> None:
    for case in random.Random(run_seed + 1).sample([case for case in CASES if not case.is_variant], SAMPLE):
        check_own_numbers(case, spark, run_seed, tmp_path / case.name)


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_operator_gives_the_same_results_with_a_number_of_subtasks_of_its_own(
    case: Case, spark: SparkSession, run_seed: int, tmp_path: Path
) -> None:
    check_own_numbers(case, spark, run_seed, tmp_path)


def test_placed_operators_with_numbers_of_subtasks_of_their_own_give_the_same_results(
    spark: SparkSession, run_seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    case = random.Random(run_seed).choice([case for case in CASES if len(numbers(case, 1)) > 1])
    with placed_lmdb(), caplog.at_level(logging.INFO, "epochal.engine.placement"):
        check_own_numbers(case, spark, run_seed, tmp_path / case.name, ("heap", "lmdb"))
    assert f"Placement of 5, 8 subtasks on {MACHINES} machines" in caplog.text


def check_own_numbers(
    case: Case, spark: SparkSession, run_seed: int, folder: Path, backends: tuple[str, str] | None = None
) -> None:
    try:
        check(case, spark, run_seed, folder, backends, own_numbers=True)
    except Exception as error:
        error.add_note(f"The operator is {case.name!r}; the seed of the run is {run_seed}.")
        raise


def check_placed(
    case: Case, spark: SparkSession, run_seed: int, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    with placed_lmdb(), caplog.at_level(logging.INFO, "epochal.engine.placement"):
        try:
            check(case, spark, run_seed, folder, ("heap", "lmdb"))
        except Exception as error:
            error.add_note(f"The operator is {case.name!r}; the seed of the run is {run_seed}.")
            raise
    assert f"on {MACHINES} machines" in caplog.text


def check(
    case: Case,
    spark: SparkSession,
    run_seed: int,
    folder: Path,
    backends: tuple[str, str] | None = None,
    own_numbers: bool = False,
) -> None:
    """``backends``: that of the whole run and that of the one with cuts; by default the same, by the seed.
    ``own_numbers``: in the run with cuts, operators have other numbers of subtasks than the application."""
    folder.mkdir(exist_ok=True)
    rows = some_rows(run_seed)
    of_whole, of_cut = backends or (("heap", "lmdb")[(run_seed + CASES.index(case)) % 2],) * 2
    first, second = sorted((run_seed % 23 + 5, run_seed % 31 + 20))
    with harness(case, of_whole, spark) as whole, harness(case, of_cut, spark) as cut:
        for query in case.queries:
            whole.ask("queries", query)
            cut.ask("queries", query)
        expected = [whole.epoch(rows=rows)["out"]]
        outputs = [cut.epoch(rows=rows[:first])["out"]]
        outputs.append(retried(cut, rows[first:second], folder / "fired"))
        cut.restart()
        outputs.append(cut.epoch(rows=[])["out"])
        if own_numbers:
            cut.restart(parallelisms=numbers(case, 3, None))
            outputs.append(cut.epoch(rows=[])["out"])
            cut.restart(parallelism=3, parallelisms=numbers(case, 5, 8))
            outputs.append(cut.epoch(rows=rows[second:])["out"])
            if not any(table.scope is StateScope.PARTIAL and table.reconcile is None for table in cut.state_tables):
                cut.restart(parallelisms=numbers(case, 4, 1))
        else:
            cut.restart(parallelism=3)
            outputs.append(cut.epoch(rows=rows[second:])["out"])
        for _ in range(case.closing):
            expected.append(whole.epoch()["out"])
            outputs.append(cut.epoch()["out"])
        assert not case.closing or any(output.num_rows for output in expected), "nothing was due"
        assert meaning(case, outputs) == meaning(case, expected)
        for table in whole.state_tables:
            if table.id in case.by_cuts:
                continue
            # The location of a row without a key has no meaning.
            columns = [column.name for column in (*(table.full_key if table.scope.has_key else ()), *table.value)]
            assert multiset(cut.state(table.id), columns) == multiset(whole.state(table.id), columns), table.id


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_state_definitions_of_every_operator_detect_changed_input(case: Case, spark: SparkSession) -> None:
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


def operator_kinds() -> list[type[Operator]]:
    """Every kind of operator that Epochal has."""
    for module in walk_packages(operators.__path__, f"{operators.__name__}."):
        import_module(module.name)
    found, pending = [], [Operator]
    while pending:
        below = pending.pop().__subclasses__()
        pending += below
        found += [kind for kind in below if kind.__module__.startswith("epochal.operators.")]
    return [kind for kind in found if kind not in SHARED]


def name_of(operator: type[Operator]) -> str:
    """``DropDuplicatesOperator`` as ``drop_duplicates``."""
    return re.sub("(?<!^)(?=[A-Z])", "_", operator.__name__.removesuffix("Operator")).lower()


@pytest.mark.claim("SDG, table 1, programming model")
def test_every_kind_of_operator_is_tested() -> None:
    kinds = set(map(name_of, set(operator_kinds()) - TESTED_ELSEWHERE))
    assert {case.kind for case in CASES} == {case.name for case in CASES if not case.is_variant} == kinds


def test_the_page_on_adding_an_operator_shows_the_operator() -> None:
    sources = {"plan": (DistinctOperator, DistinctPlan), "work": (DistinctWork,)}
    for module, classes in sources.items():
        start = f"<!-- epochal/operators/distinct/{module}.py -->\n```python\n"
        shown = PAGE.read_text().partition(start)[2].partition("```")[0]
        assert shown == "\n\n".join(map(inspect.getsource, classes))


def harness(case: Case, backend: str, spark: SparkSession) -> Harness:
    configuration = Configuration(state_backend=backend, parallelism=2, max_parallelism=12, epoch_interval_seconds=0)
    return Harness(case.pipeline(), spark, configuration)


def retried(test: Harness, rows: list[Row], fired: Path) -> pa.Table:
    """An epoch that is aborted after all its tasks have run, and the next one, which processes its rows."""
    faults.plan([Fault("E3.collected", "raise", once=str(fired))])
    try:
        with pytest.raises(EpochAborted):
            test.epoch(rows=rows)
    finally:
        faults.plan([])
    return test.epoch()["out"]


def numbers(case: Case, *of_operators: int | None) -> dict[str, int]:
    """Numbers of subtasks of the case's operators, alternately; ``None``: that of the application."""
    names = dict.fromkeys(each.scaled_as for each in case.pipeline().graph().scaled)
    chosen = {name: of_operators[place % len(of_operators)] for place, name in enumerate(names)}
    return {name: number for name, number in chosen.items() if number is not None}


def meaning(case: Case, outputs: list[pa.Table]) -> Any:
    """All rows, or of an upsert stream the newest of each key."""
    rows = [row for output in outputs for row in output.to_pylist()]
    if not case.upserts:
        return Counter(tuple(row.items()) for row in rows)
    newest = {tuple(row[name] for name in case.upserts): row for row in rows}
    return {key: row for key, row in newest.items() if case.ended is None or row[case.ended]}


def multiset(table: pa.Table, columns: list[str]) -> Counter[str]:
    return Counter(repr(tuple(row.values())) for row in table.select(columns).to_pylist())


def tables(case: Case, spark: SparkSession) -> tuple[StateTable, ...]:
    found = analyse(case.pipeline().graph(), spark).tables
    return tuple(StateTable.model_validate_json(table.model_dump_json()) for table in found)

"""Partial state at another parallelism: reconciled instances, and the reads and writes of the work meanwhile."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from epochal.aggregates import kept_merges
from epochal.backends.heap import HeapBackend
from epochal.backends.lmdb import LmdbBackend
from epochal.declarations.reconcile import reconciling_of
from epochal.declarations.state import ListState, MapState, StateDeclaration, ValueState
from epochal.errors import AuthorError, PipelineError
from epochal.snapshots.continuation import against_shrinking
from epochal.snapshots.merging import merged
from epochal.state.access import TableAccess
from epochal.state.table import Column, StateTable
from epochal.tasks.reconciling import reconciling
from epochal.testing.reconciling import check_reconcile
from epochal.testing.state_world import COUNTS, GROUPS, OWNER, World, changes_of
from tests.kit.manifests import plain_manifest
from tests.spark.contract.local_stores import LocalStoreHarness

Functions = Mapping[str, Callable[[Any, Any], Any]]


def declared(name: str, state: StateDeclaration) -> StateTable:
    state.name = name
    return state.table(OWNER, ())


SUMS = declared("sums", MapState(key="word string", value="n bigint", scope="partial", reconcile="sum"))
AUTHORS = declared(
    "authors", MapState(key="word string", value="n bigint", scope="partial", reconcile=lambda a, b: a + b)
)
LATEST = declared(
    "latest",
    ValueState("price double, at bigint", scope="partial", reconcile={"price": "last(at)", "at": "max"}),
)
NAMES = declared("names", ListState("name string", scope="partial", reconcile=lambda a, b: sorted({*a, *b})))
TABLES = (COUNTS, SUMS, AUTHORS, LATEST, NAMES)
FUNCTIONS: Functions = {AUTHORS.id: operator.add, NAMES.id: lambda a, b: sorted({*a, *b})}


@pytest.fixture(params=[HeapBackend, LmdbBackend])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return World(LocalStoreHarness(request.param, tmp_path), 1, TABLES)


def epoch(world: World, parallelism: int, written: Mapping[int, Mapping[str, list[Any]]]) -> None:
    """``written``: by subtask and table the changes of the epoch's work."""
    world.parallelism = parallelism
    handles = []
    for subtask in range(parallelism):
        transaction = reconciling(world.start(subtask), TABLES, subtask, parallelism, GROUPS, FUNCTIONS)
        for table in TABLES:
            for part in written.get(subtask, {}).get(table.id, []):
                transaction.stage(table.id, changes_of(table, part))
        handles.append(transaction.pre_commit())
    world.publish(handles)


def rows(world: World, table: StateTable) -> list[dict[str, Any]]:
    found = merged(world.harness.store, table, world.chains[table.id], range(GROUPS)).to_pylist()
    assert all(row.pop("_kg") == row["_group"] for row in found)
    return found


def maps(world: World, table: StateTable) -> dict[int, dict[str, int]]:
    found: dict[int, dict[str, int]] = {}
    for row in rows(world, table):
        found.setdefault(row["_group"], {})[row["word"]] = row["n"]
    return found


@pytest.mark.claim("SDG, 3.2, merge")
def test_instances_are_reconciled_and_others_start_empty(world: World, run_seed: int) -> None:
    """Maps that are merged by a built-in and by a function, while the epoch writes and deletes, compared with a
    model."""
    random, model = Random(run_seed), dict[int, dict[str, int]]()
    for parallelism in (5, 5, 2, 4, 1, 3, 3, 1):
        instances = {number: model.pop(number) for number in sorted(model)}
        model = {subtask: {} for subtask in range(parallelism)}
        for number, held in instances.items():
            mine = model[number % parallelism]
            mine |= {word: mine.get(word, 0) + n for word, n in held.items()}
        written: dict[int, dict[str, list[Any]]] = {}
        for subtask, held in model.items():
            puts = {f"w{random.randrange(9)}": random.randrange(100) for _ in range(random.randrange(6))}
            deleted = [word for word in held if word not in puts and random.random() < 0.2]
            held |= puts
            changes = [{"_group": subtask, "word": word, "n": n} for word, n in puts.items()]
            changes += [{"_group": subtask, "word": word} for word in deleted]
            written[subtask] = {table.id: [changes] for table in (SUMS, AUTHORS)}
            model[subtask] = {word: n for word, n in held.items() if word not in deleted}
        epoch(world, parallelism, written)
        expected = {number: held for number, held in model.items() if held}
        assert maps(world, SUMS) == expected
        assert maps(world, AUTHORS) == expected


def test_a_task_reads_the_reconciled_instance_before_it_is_stored(world: World) -> None:
    epoch(
        world,
        4,
        {
            subtask: {
                SUMS.id: [[{"_group": subtask, "word": word, "n": subtask + 1} for word in ("all", f"w{subtask}")]],
                LATEST.id: [[{"_group": subtask, "price": float(subtask), "at": 10 - subtask}]],
                NAMES.id: [[{"_group": subtask, "_index": n, "name": f"n{n + subtask}"} for n in range(3)]],
            }
            for subtask in range(4)
        },
    )
    world.parallelism = 2
    transaction = reconciling(world.start(1), TABLES, 1, 2, GROUPS, FUNCTIONS)
    access = TableAccess(SUMS, transaction.view(SUMS.id), GROUPS)
    keys = pa.table({"_group": pa.array([1, 1, 1, 1], pa.int32()), "word": ["w3", "all", "w1", "w0"]})
    found, values = access.get(keys)
    assert (found.tolist(), values["n"].to_pylist()) == ([True, True, True, False], [4, 6, 2, None])
    entries = access.entries(pa.table({"_group": pa.array([1], pa.int32())}))
    assert entries.rows.to_pylist() == [{"word": "all", "n": 6}, {"word": "w1", "n": 2}, {"word": "w3", "n": 4}]
    transaction.discard()
    epoch(world, 2, {})
    assert rows(world, LATEST) == [{"_group": 0, "price": 0.0, "at": 10}, {"_group": 1, "price": 1.0, "at": 9}]
    assert [row["name"] for row in rows(world, NAMES) if row["_group"] == 1] == ["n1", "n2", "n3", "n4", "n5"]
    epoch(world, 2, {})
    assert not world.chains[SUMS.id].links[-1].deltas, "reconciled more than once"


def test_a_failed_reconciliation_names_the_state(world: World) -> None:
    most = 2**63 - 1
    epoch(world, 2, {subtask: {SUMS.id: [[{"_group": subtask, "word": "w", "n": most}]]} for subtask in range(2)})
    message = r"Operator 'counts', state 'counts.sums', reconciling instances 0 and 1: the sum does not fit into bigint"
    world.parallelism = 1
    with pytest.raises(AuthorError, match=message):
        reconciling(world.start(0), TABLES, 0, 1, GROUPS, FUNCTIONS)
    epoch(world, 2, {subtask: {SUMS.id: [[{"_group": subtask, "word": "w", "n": 1}]]} for subtask in range(2)})
    epoch(world, 2, {subtask: {AUTHORS.id: [[{"_group": subtask, "word": "w", "n": 0}]]} for subtask in range(2)})
    world.parallelism = 1
    functions = {**FUNCTIONS, AUTHORS.id: operator.floordiv}
    with pytest.raises(AuthorError, match=r"'counts.authors', reconciling instances 0 and 1: .* ZeroDivisionError"):
        reconciling(world.start(0), TABLES, 0, 1, GROUPS, functions)


def test_fewer_subtasks_require_a_reconcile_function() -> None:
    alone = declared("alone", ValueState("n bigint", scope="partial"))
    before = plain_manifest(1, parallelism=4, tables=(*TABLES, alone))
    assert list(against_shrinking(before, [*TABLES, alone], {"counts": 4})) == []
    (problem,) = against_shrinking(before, [*TABLES, alone], {"counts": 3})
    assert problem.startswith(
        "State table 'counts.alone' is partial state with 4 instances and no reconcile function: "
        "at parallelism 3 some instances would be lost. Declare the state with reconcile=.."
    )
    assert problem.endswith("or keep the parallelism at 4 or more.")
    new = plain_manifest(1, parallelism=4, tables=TABLES)
    assert list(against_shrinking(new, [*TABLES, alone], {"counts": 3})) == [], "it has no instances yet"


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers()), min_size=3, max_size=3))
def test_check_reconcile_accepts_a_sum(held: list[dict[str, int]]) -> None:
    def added(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
        for name, n in other.items():
            one[name] = one.get(name, 0) + n
        return one

    check_reconcile(added, *held)


_ROW = st.tuples(st.none() | st.integers(-3, 3), st.none() | st.integers(-2, 2))


@given(st.lists(_ROW, min_size=3, max_size=3), st.sampled_from(["sum", "count", "min", "max", "first(at)", "last(at)"]))
@example([(1, None), (2, None), (None, 1)], "last(at)")
@example([(1, None), (2, None), (None, 1)], "first(at)")
def test_built_in_reconciliation_is_independent_of_order(rows: list[tuple[int | None, int | None]], merge: str) -> None:
    columns = (Column(name="n", type="bigint"), Column(name="at", type="bigint"))
    merges = reconciling_of("state", columns, {"n": merge, "at": "min" if merge.startswith("first") else "max"})
    assert isinstance(merges, tuple)
    schema = pa.schema([column.to_arrow() for column in columns])

    def reconcile(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
        tables = (pa.table([[value] for value in row], schema=schema) for row in (one, other))
        return tuple(kept_merges.merged(merges, *tables).to_pylist()[0].values())

    check_reconcile(reconcile, *rows)


def test_a_reconciliation_that_depends_on_the_order_is_detected() -> None:
    check_reconcile(operator.add, 0.1, 0.2, 0.3)
    with pytest.raises(AssertionError, match=r"not commutative: reconcile\(3, 2\) is 1, and the other way round -1"):
        check_reconcile(operator.sub, 3, 2, 1)
    with pytest.raises(AssertionError, match=r"not associative: of 1.0, 2.0 and 3.0 it makes 2.25, or, .* 1.75"):
        check_reconcile(lambda a, b: (a + b) / 2, 1.0, 2.0, 3.0)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (
            lambda: MapState("a int", "n bigint", scope="partial", reconcile="sun"),
            "unknown merge 'sun'; use one of sum",
        ),
        (lambda: ValueState("n string", scope="partial", reconcile="sum"), "'n': string has no sum. Use min or max"),
        (lambda: ValueState("n array<int>", scope="partial", reconcile="max"), "array<int> has no order"),
        (lambda: ValueState("n int", scope="partial", reconcile={"m": "sum"}), "'m', which is not a value column"),
        (
            lambda: ValueState("n int, m int", scope="partial", reconcile={"m": "sum"}),
            "how column 'n' is merged",
        ),
        (lambda: ValueState("n int", scope="partial", reconcile="last(at)"), "requires another value column"),
        (lambda: ListState("n int", scope="partial", reconcile="sum"), "two lists are merged by a function of both"),
        (lambda: ValueState("n int", reconcile="sum"), "of scope 'keyed' cannot have reconcile: only partial state"),
    ],
)
def test_an_invalid_reconcile_is_refused(state: Callable[[], StateDeclaration], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        declared("refused", state())

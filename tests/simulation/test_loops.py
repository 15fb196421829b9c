"""Loops with real tasks, state and recovery: records in flight are part of snapshots and survive faults."""

from __future__ import annotations

import random

import hypothesis.strategies as st
import pytest
from hypothesis import given

from epochal.engine import points
from epochal.engine.trial import _Trial
from epochal.engine.trial_comparison import compare_states
from epochal.errors import EpochAborted, Fenced, IncompatibleState
from epochal.snapshots import layout, task_files
from epochal.snapshots.bundle_writing import files_of
from epochal.snapshots.packs import TASK_BYTES
from epochal.snapshots.references import References
from epochal.snapshots.verification import Trouble, Verification
from epochal.tasks import steps as task_points
from tests.kit.graphs import COUNTED, EDGES, Edge, Later, components, connected, rounds, rows_of_edges
from tests.kit.lives import Life, Row, Step, cut, examples, failing_at, steps
from tests.simulation.test_event_time_faults import point_names

CHANCE = random.Random(5)
GRAPH: list[Edge] = [(vertex, vertex + 1) for vertex in range(1, 9)] + [
    (CHANCE.randrange(20, 40), CHANCE.randrange(20, 40)) for _ in range(18)
]
"""A long path, on which labels make many hops, and a dense random graph."""
BATCHES = [GRAPH[4:], GRAPH[:2], GRAPH[2:4]]
SMALL: list[list[Edge]] = [[(3, 4), (4, 5), (8, 9)], [(1, 2), (2, 3)]]


def row_key(row: Row) -> tuple[int, int]:
    return row["vertex"], row["neighbour"]


def labels(life: Life) -> dict[int, int]:
    return {row["vertex"]: row["label"] for row in life.state("components.component")}


def test_records_in_flight_open_epochs_until_the_loop_is_empty() -> None:
    with Life(components(), {"edges": EDGES}) as life:
        life.epoch(edges=rows_of_edges(GRAPH))
        first = life.manifests[0]
        assert first.loops["messages"].rows == len({row_key(row) for row in rows_of_edges(GRAPH)})
        life.settle()
        assert labels(life) == connected(GRAPH)
        opened = [manifest.conditions.opened_for for manifest in life.manifests if manifest.conditions]
        assert opened[0] == ("input",) and set(opened[1:]) == {("in_flight",)} and len(opened) > 8
        assert life.manifests[-1].loops["messages"].files == ()
        assert [manifest.counts.rows_in for manifest in life.manifests[1:3]] == [
            manifest.loops["messages"].rows for manifest in life.manifests[:2]
        ]


@pytest.mark.parametrize("aligned", [False, True])
def test_only_aligned_loops_exceed_the_slice_limit(aligned: bool) -> None:
    with Life(components(aligned=aligned), {"edges": EDGES}, most=9) as life:
        for batch in BATCHES:
            life.epoch(edges=rows_of_edges(batch))
        life.settle(500)
        assert labels(life) == connected(GRAPH)
        slices = [manifest.slices.get("messages") for manifest in life.manifests]
        most = max(slice.rows or 0 for slice in slices if slice is not None)
        assert most > 9 if aligned else most == 9


def run_with_fault(point: str, error: Exception, aligned: bool) -> tuple[dict[int, int], bool]:
    """Run with a fault while records are in flight. Returns the final labels, and whether the fault fired."""
    with Life(components(aligned=aligned), {"edges": EDGES}) as life:
        for batch in SMALL:
            life.epoch(edges=rows_of_edges(batch))
        with failing_at(point, error) as fired:
            try:
                life.restart()
                life.epoch()
                life.epoch()
                life.finish()
            except (Fenced, EpochAborted):
                pass
        life.restart(3)
        life.settle()
        life.finish()
        files = [part.file for manifest in life.manifests for part in manifest.loops["messages"].files]
        assert {path for path in life.store.list("") if "/loops/" in path} == {
            file.path for file in files if file.within is None
        }, "the files are those of the snapshots"
        return labels(life), bool(fired)


DRIVER_POINTS = (
    "E1.before",
    "E1.slices",
    "E1.opened",
    "E2",
    "E3",
    "E4",
    "E5.before",
    "E5.sink-committed",
    "E6",
    "E7.swept",
    "R4",
)
"""Prefixes of the points that this application reaches: not reconfiguration, administration and compaction."""
DRIVER = [name for name in point_names(points) if name.startswith(DRIVER_POINTS)]
TASKS = [*point_names(task_points), "T3.loop.records-durable"]


@pytest.mark.parametrize("point", [*DRIVER, *TASKS])
@pytest.mark.alternating(2)
def test_records_in_flight_survive_faults(point: str) -> None:
    error = Fenced("the driver has died") if point in DRIVER else OSError("the disk has failed")
    found, fired = run_with_fault(point, error, aligned=len(point) % 2 == 0)
    assert fired or point.startswith(("abort", "R")), "the fault did not fire"
    assert found == connected([edge for batch in SMALL for edge in batch])


def test_branch_continues_with_the_records_of_its_snapshot() -> None:
    with Life(components(), {"edges": EDGES}) as life:
        life.epoch(edges=rows_of_edges(GRAPH))
        life.settle()
        life.continue_from(3, "fork")
        life.settle()
        assert labels(life) == connected(GRAPH)
        forked, original = life.manifests[0], 3
        assert forked.parent is not None and forked.parent.epoch == original
        assert forked.slices["messages"].rows == life.store.read_manifest(forked.parent).loops["messages"].rows


def test_records_in_flight_belong_to_the_files_of_a_snapshot() -> None:
    """Collections, exports and ``verify`` use the same files."""
    with Life(components(), {"edges": EDGES}, most=3) as life:
        life.epoch(edges=rows_of_edges(GRAPH[:4]))
        life.epoch()
        second, records = life.decided[1], life.manifests[1].loops["messages"].files
        written_before = life.manifests[0].loops["messages"].files[0].file.path
        assert records[0].first > 0 or records[0].file.path != written_before, "the loop has consumed a part"
        assert {part.file.stored_in for part in records} <= References(life.store).needed(second)
        exported = files_of(life.store, second, None)
        members = {file.path for file in exported.files} | exported.packs.keys()
        assert {part.file.stored_in for part in records} <= members
        places = [layout.place_of(part.file.path) for part in records]
        assert all(place and (place.kind, place.finished) == ("loop", True) for place in places)
        report = Verification(life.store, life.decided).run()
        assert report.is_sound and not report.unreferenced
        life.store.delete(records[-1].file.stored_in)
        found = Verification(life.store, life.decided).run().findings
        assert any(finding.trouble is Trouble.MISSING and second.key in finding.harms for finding in found)


@pytest.fixture(autouse=True, params=[0, TASK_BYTES], ids=["files", "packs"])
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records lie in files of their own, or in packs."""
    monkeypatch.setattr(task_files, "TASK_BYTES", request.param)


def test_aligned_loop_takes_no_input_until_it_has_converged() -> None:
    with Life(rounds(), {"rows": COUNTED}) as life:
        life.rows["rows"].give([{"name": "a", "n": 2}, {"name": "b", "n": 1}])
        life.rows["rows"].give([{"name": "c", "n": 0}])
        life.settle()
        output = [[(row["name"], row["n"], row["hop"]) for row in rows] for rows in life.shown("said")]
        assert [sorted(rows) for rows in output] == [
            [("a", 2, 0), ("b", 1, 0)],
            [("a", 1, 1), ("b", 0, 1)],
            [("a", 0, 2)],
            [],
            [("c", 0, 0)],
        ]
        conditions = [manifest.conditions for manifest in life.manifests]
        assert [each.converged for each in conditions if each] == [False, False, False, True, False]
        assert [manifest.loops["loop"].hop for manifest in life.manifests] == [1, 2, 3, 0, 0]


@pytest.mark.parametrize("aligned", [False, True])
def test_records_beyond_max_hops_are_dead_letters(aligned: bool) -> None:
    with Life(rounds(max_hops=2, aligned=aligned), {"rows": COUNTED}) as life:
        life.epoch(rows=[{"name": "a", "n": 9}, {"name": "b", "n": 1}])
        life.epoch(rows=[{"name": "c", "n": 9}])
        life.settle()
        dead = sorted((row["name"], row["n"], row["_hop"]) for row in life.all_of("dead"))
        assert dead == [("a", 6, 3), ("c", 6, 3)]
        assert sorted(row["n"] for row in life.all_of("said") if row["name"] == "a") == [7, 8, 9]


def test_output_of_a_timer_starts_with_its_own_hops() -> None:
    with Life(rounds(max_hops=2, aligned=False, process=Later), {"rows": COUNTED}) as life:
        life.epoch(Step(clock=0), rows=[{"name": "a", "n": 4}, {"name": "b", "n": 9}])
        life.settle()
        assert [(row["name"], row["n"], row["_hop"]) for row in life.all_of("dead")] == [("b", 6, 3)]
        life.epoch(Step(clock=1))
        life.settle()
        assert [row["n"] for row in life.all_of("said") if row["name"] == "a"] == [4, 2, 1]
        assert [(row["n"], row["_hop"]) for row in life.all_of("dead") if row["name"] == "a"] == [(0, 3)]


def test_source_that_waits_for_a_loop_is_reported() -> None:
    with Life(rounds(), {"rows": COUNTED}) as life:
        life.epoch(rows=[{"name": "a", "n": 3}])
        life.epoch()
        assert life.coordinator.situation().in_flight
        assert life.coordinator.meter.report().moment.sources.keys() == {"rows"}


def test_retries_in_an_aligned_loop_keep_the_hop() -> None:
    with Life(rounds(), {"rows": COUNTED}) as life:
        life.epoch(rows=[{"name": "a", "n": 3}])
        for fault in ("abort", "die", "die decided", "abort", "restart"):
            life.epoch(Step(fault, parallelism=3))  # type: ignore[arg-type]
        life.settle()
        assert [(row["n"], row["hop"]) for row in life.all_of("said")] == [(3, 0), (2, 1), (1, 2), (0, 3)]
        assert [manifest.conditions.converged for manifest in life.manifests if manifest.conditions][-1]


def test_upgrade_continues_with_records_in_flight_or_is_refused() -> None:
    with Life(rounds(), {"rows": COUNTED}) as life:
        life.epoch(rows=[{"name": "a", "n": 2}])
        with pytest.raises(IncompatibleState, match="Loop 'loop' has 1 records in flight, and is not in this version"):
            life.upgrade(rounds(name="other"))
        life.upgrade(rounds(max_hops=1, aligned=False))
        life.settle()
        assert [(row["n"], row["hop"]) for row in life.all_of("said")] == [(2, 0), (1, 0)], "hops start again at 0"
        assert [(row["n"], row["_hop"]) for row in life.all_of("dead")] == [(0, 2)]
        life.finish()
        life.upgrade(rounds(name="other"))
        assert life.manifests[-1].loops["loop"].files == ()


@pytest.mark.parametrize("aligned", [False, True])
def test_trial_takes_the_same_number_of_records(aligned: bool) -> None:
    """The same version therefore has the same state at the same epoch, independent of the limits of slices."""
    with Life(components(aligned=aligned), {"edges": EDGES}, most=5) as life:
        life.epoch(edges=rows_of_edges(GRAPH[:6]))
        for _ in range(5):
            life.epoch()
        base, *tried = life.decided[1:5]
        trial = _Trial(life.program, "trial-loop", life.store, base)
        trial.run([life.store.read_manifest(reference) for reference in tried])
        assert all(table.same for table in compare_states(life.store, tried[-1], trial.tables, trial.chains))
        assert trial.parent is not None
        expected = life.store.read_manifest(tried[-1]).loops["messages"]
        assert (trial.parent.loops["messages"].rows, trial.parent.loops["messages"].hop) == (
            expected.rows,
            expected.hop,
        )


@examples(4)
@given(
    edges=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=15),
    cuts=st.lists(st.integers(0, 100), max_size=3),
    lived_steps=steps(),
    most=st.sampled_from((None, 2, 7)),
    aligned=st.booleans(),
)
def test_components_of_any_graph_are_found_despite_faults(
    edges: list[Edge], cuts: list[int], lived_steps: list[Step], most: int | None, aligned: bool
) -> None:
    with Life(components(aligned=aligned), {"edges": EDGES}, most=most) as life:
        batches = cut(rows_of_edges(edges), cuts)
        life.live([{"edges": batch} for batch in batches], lived_steps)
        life.settle(500)
        assert labels(life) == connected(edges)

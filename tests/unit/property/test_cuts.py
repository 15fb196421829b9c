"""Snapshots of the papers' algorithms over random graphs, inputs and schedules, judged by definition 3.4.2."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import hypothesis
import pytest
from hypothesis import Phase, find, given

from tests.kit.cuts.barriers import AcyclicTask, CyclicTask
from tests.kit.cuts.chandy_lamport import ChandyLamport
from tests.kit.cuts.epoch_snapshots import epoch_snapshots, expanded, unaligned
from tests.kit.cuts.figures import aligned, consistent_only, drawn
from tests.kit.cuts.judgement import epoch_violations, losses, validity_violations
from tests.kit.cuts.processes import Channel, Execution, MakeProcess, ProcessGraph
from tests.kit.cuts.traces import Mark, Trace, disorder
from tests.unit.property.executions import Scene, graphs, scenes

THEORY = Path(__file__).parents[3] / "docs/theory/papers.md"
SEARCH = hypothesis.settings(
    max_examples=2000, derandomize=True, database=None, phases=[Phase.generate, Phase.shrink], deadline=None
)


@given(scenes(graphs()))
@pytest.mark.claim("ABS, algorithm 1")
def test_abs_1_is_epoch_complete_without_loops(scene: Scene) -> None:
    assert_epoch_complete(scene, AcyclicTask, scene.graph)


@given(scenes(graphs(loops=True)))
@pytest.mark.claim("ABS, algorithm 2")
def test_abs_2_is_epoch_complete_with_loops(scene: Scene) -> None:
    execution = scene.run(CyclicTask, one_at_a_time=True)
    assert_all_complete(scene, execution)
    assert_resumes(scene, CyclicTask, scene.graph, execution)


@given(scenes(graphs()))
@pytest.mark.claim("Thesis, specification 2", "Thesis, 3.4.5.3", "Thesis, algorithm 5", "Thesis, algorithm 6")
def test_algorithms_5_and_6_are_epoch_complete_without_loops(scene: Scene) -> None:
    assert_epoch_complete(scene, epoch_snapshots, scene.graph)


@given(scenes(graphs(loops=True)))
@pytest.mark.claim(
    "Thesis, specification 4", "Thesis, 3.4.5.1", "Thesis, 3.4.5.2", "Thesis, algorithm 7", "Thesis, 3.4.4.4"
)
def test_algorithms_5_to_7_are_epoch_complete_with_loops(scene: Scene) -> None:
    """An epoch may end before the marker of the previous one has returned."""
    assert_epoch_complete(scene, epoch_snapshots, expanded(scene.graph))


@given(scenes(graphs() | graphs(loops=True), epochs=1))
@pytest.mark.claim(
    "Thesis, definition 3.2.2",
    "Thesis, definition 3.2.3",
    "Thesis, specification 1",
    "Thesis, lemma 3.2.1",
    "Thesis, theorem 3.2.2",
)
def test_chandy_lamport_is_consistent(scene: Scene) -> None:
    execution = scene.run(ChandyLamport)
    assert validity_violations(execution, 1) == []
    assert_resumes(scene, ChandyLamport, scene.graph, execution)


@given(scenes(graphs()))
@pytest.mark.claim("Thesis, 4.5.4, snapshots")
def test_unaligned_snapshots_lose_no_message(scene: Scene) -> None:
    execution = scene.run(unaligned)
    for epoch in scene.epochs:
        assert losses(execution, epoch) == []


def test_unaligned_snapshots_repeat_messages() -> None:
    found = find(scenes(graphs(), epochs=1), lambda scene: not is_complete(scene, unaligned), settings=SEARCH)
    problems = epoch_violations(found.run(unaligned), 1)
    assert any(problem.startswith("(1)") for problem in problems), problems


@pytest.mark.claim("Thesis, algorithm 3")
def test_chandy_lamport_is_not_epoch_complete() -> None:
    """Hypothesis shrinks the counterexample to figure 3.14 of the thesis, which the docs show."""
    found = find(scenes(graphs(), epochs=1), lambda scene: not is_complete(scene, ChandyLamport), settings=SEARCH)
    execution = found.run(ChandyLamport)
    shown = "\n".join([drawn(execution, 1), *epoch_violations(execution, 1)])
    print(shown)
    assert validity_violations(execution, 1) == []
    assert len(found.graph.sources) == 2, "with one source a cut at the markers is an epoch cut"
    assert shown in THEORY.read_text(), shown
    assert is_complete(found, epoch_snapshots), "aligned snapshots must be complete"


@pytest.mark.claim("Thesis, figure 3.14", "Thesis, figure 3.16")
def test_the_docs_show_figures_3_14_and_3_16() -> None:
    command = [sys.executable, "-m", "tests.kit.cuts"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert printed in THEORY.read_text(), printed
    assert validity_violations(consistent_only(), 1) == []
    assert any(problem.startswith("(3)") for problem in epoch_violations(consistent_only(), 1))
    assert epoch_violations(aligned(), 1) == []


@pytest.mark.claim(
    "Thesis, definition 3.2.4",
    "Thesis, definition 3.2.5",
    "Thesis, definition 3.2.6",
    "Thesis, lemma 3.2.3",
    "Thesis, figure 3.1",
)
def test_a_process_that_reaches_all_others_can_initiate_a_snapshot() -> None:
    """Figure 3.1: any process of a strongly connected graph; of another graph, all processes without inputs."""
    back = [Channel("p3", "p1", closes_loop=True), Channel("p3", "p2", closes_loop=True)]
    channels = (Channel("p1", "p2"), Channel("p2", "p3"), *back)
    connected = ProcessGraph(channels, initiators=frozenset({"p1"}))
    assert connected.is_strongly_connected
    scene = Scene(connected, {"p1": (1, 1)}, (0, 1, 0))
    assert validity_violations(scene.run(ChandyLamport), 1) == []
    acyclic = ProcessGraph(channels[:2])
    assert not acyclic.is_strongly_connected
    assert acyclic.reaches("p2") == {"p3"}
    wrong_initiator = replace(acyclic, initiators=frozenset({"p2"}))
    execution = Scene(wrong_initiator, {"p2": (1, 1)}, ()).run(ChandyLamport)
    assert "p1 has not recorded epoch 1" in validity_violations(execution, 1)


@pytest.mark.claim("Thesis, definition 3.4.1")
def test_marks_out_of_order_are_detected() -> None:
    assert disorder(Trace({"s1": [Mark("s1", 1), "a", Mark("s1", 2)]}, {})) == []
    assert disorder(Trace({"s1": [Mark("s1", 2), "a", Mark("s1", 1)]}, {})) == ["s1: mark 1 after 2"]


@pytest.mark.parametrize("make", [ChandyLamport, AcyclicTask, CyclicTask, epoch_snapshots])
def test_one_source_needs_no_alignment(make: MakeProcess) -> None:
    chain = ProcessGraph((Channel("s1", "t1"), Channel("t1", "t2")))
    scene = Scene(chain, {"s1": (2, 2)}, (0, 1, 0, 1, 1))
    assert is_complete(scene, make)


def assert_epoch_complete(scene: Scene, make: MakeProcess, graph: ProcessGraph) -> None:
    execution = scene.run(make, graph)
    assert_all_complete(scene, execution)
    assert_resumes(scene, make, graph, execution)


def assert_all_complete(scene: Scene, execution: Execution) -> None:
    assert not execution.is_stuck
    for epoch in scene.epochs:
        assert epoch_violations(execution, epoch) == []


def assert_resumes(scene: Scene, make: MakeProcess, graph: ProcessGraph, execution: Execution) -> None:
    """The snapshot of any epoch resumes the rest of the computation, and repeats nothing."""
    everything = [event for events in execution.trace.processes.values() for event in events]
    happened = {str(event) for event in everything if not isinstance(event, Mark)}
    for epoch in scene.epochs:
        snapshot = execution.snapshots[epoch]
        resumed = scene.resumed(make, graph, epoch, snapshot)
        all_events = [event for events in resumed.trace.processes.values() for event in events]
        repeated = [str(event) for event in all_events if not isinstance(event, Mark)]
        assert sorted(repeated) == sorted(happened - {str(event) for event in snapshot.cut})


def is_complete(scene: Scene, make: MakeProcess) -> bool:
    return epoch_violations(scene.run(make), 1) == []

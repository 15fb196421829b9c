"""Listings of the papers that contradict their sections: the listing fails, the section is right.

Each test finds an execution in which the listing fails, and in which the algorithm of the section does not.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import find

from tests.kit.cuts.barriers import CyclicTask
from tests.kit.cuts.epoch_snapshots import LoopHead, RegularTask, epoch_snapshots, expanded
from tests.kit.cuts.judgement import epoch_violations
from tests.kit.cuts.processes import Channel, Execution, Marker, Message, Process
from tests.unit.property.executions import Scene, graphs, scenes
from tests.unit.property.test_cuts import SEARCH


class RecordsAtEveryMarker(RegularTask):
    """Algorithm 6, lines 7 to 13 in order: records (8) at every marker, of which the first counts."""

    def on_marker(self, channel: Channel, marker: Marker) -> None:
        self.record(marker.epoch, self.s)
        super().on_marker(channel, marker)


class RecordsAlways(LoopHead):
    """Algorithm 7, lines 1 to 15: recording stays true from the first epoch on; recording empties ``s_p``."""

    def __init__(self, name: str, execution: Execution) -> None:
        super().__init__(name, execution)
        self.is_recording, self.s = False, list[Message]()

    def on_epoch(self, epoch: int) -> None:
        self.is_recording = True
        super().on_epoch(epoch)

    def on_marker(self, channel: Channel, marker: Marker) -> None:
        self.recording[marker.epoch] = self.s
        super().on_marker(channel, marker)
        self.s = []

    def on_message(self, channel: Channel | None, message: Message) -> None:
        if self.is_recording:
            self.s.append(message)
        super().on_message(channel, message)


class LogsUntilAllAreBack(CyclicTask):
    """ABS 2, line 25: logs the messages of a loop input after its barrier, until the last input has received one."""

    def on_message(self, channel: Channel | None, message: Message) -> None:
        if self.logging and channel in self.loop_inputs & self.marked:
            assert channel is not None
            self.backup_log[channel].append(message)
        super().on_message(channel, message)


def with_tasks(regular: type[Process], head: type[Process]) -> Callable[[str, Execution], Process]:
    def make(name: str, execution: Execution) -> Process:
        if name in execution.graph.heads:
            return head(name, execution)
        return regular(name, execution) if execution.graph.inputs(name) else epoch_snapshots(name, execution)

    return make


def is_wrong(execution: Execution, scene: Scene) -> bool:
    return any(epoch_violations(execution, epoch) for epoch in scene.epochs)


@pytest.mark.claim("Thesis, algorithm 6, line 8")
def test_algorithm_6_has_to_record_at_the_last_marker() -> None:
    make = with_tasks(RecordsAtEveryMarker, LoopHead)
    found = find(scenes(graphs(), epochs=1), lambda scene: is_wrong(scene.run(make), scene), settings=SEARCH)
    assert not is_wrong(found.run(epoch_snapshots), found)


@pytest.mark.claim("Thesis, algorithm 7, as printed")
def test_algorithm_7_has_to_stop_recording() -> None:
    """Messages that return between the marker and the next epoch event are not in transit when that epoch ends."""
    make = with_tasks(RegularTask, RecordsAlways)

    def fails(scene: Scene) -> bool:
        return is_wrong(scene.run(make, expanded(scene.graph), one_at_a_time=True), scene)

    found = find(scenes(graphs(loops=True)), fails, settings=SEARCH)
    assert not is_wrong(found.run(epoch_snapshots, expanded(found.graph), one_at_a_time=True), found)


@pytest.mark.claim("ABS, algorithm 2, line 25")
def test_abs_2_has_to_stop_logging_at_each_input() -> None:
    def fails(scene: Scene) -> bool:
        return is_wrong(scene.run(LogsUntilAllAreBack, one_at_a_time=True), scene)

    found = find(scenes(graphs(loops=True), max_messages=3), fails, settings=SEARCH)
    assert not is_wrong(found.run(CyclicTask, one_at_a_time=True), found)


@pytest.mark.claim("ABS, algorithm 2, as printed")
def test_abs_2_takes_one_snapshot_at_a_time() -> None:
    """A barrier that arrives before the previous one has returned is mistaken for it, and a later epoch never ends."""
    scene = find(scenes(graphs(loops=True)), lambda scene: is_wrong(scene.run(CyclicTask), scene), settings=SEARCH)
    assert not is_wrong(scene.run(CyclicTask, one_at_a_time=True), scene)
    assert not is_wrong(scene.run(epoch_snapshots, expanded(scene.graph)), scene), (
        "algorithm 7 permits overlapping snapshots"
    )
